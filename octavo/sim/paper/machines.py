"""The paper's models on the paper's machines (its Table 1), as their data sheets have them. Nothing here is fitted."""

from dataclasses import dataclass

from octavo.sim.baselines.memory import Memory
from octavo.sim.costs import RooflineCosts

BYTES_PER_NUMBER = 2
"""fp16, weights and KV."""

MAX_MODEL_LEN = 2048
"""OPT's context."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Peak fp16 arithmetic and memory bandwidth of one, by its data sheet."""

    flops: float
    bytes_per_second: float


A100_40GB = Accelerator(flops=312e12, bytes_per_second=1555e9)
A100_80GB = Accelerator(flops=312e12, bytes_per_second=2039e9)


@dataclass(frozen=True, slots=True)
class PaperModel:
    """``kv_bytes``: what is left for keys and values beside the weights."""

    name: str
    num_parameters: float
    num_layers: int
    hidden_size: int
    accelerator: Accelerator
    num_accelerators: int
    kv_bytes: int

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.hidden_size * BYTES_PER_NUMBER

    @property
    def num_slots(self) -> int:
        """Tokens that the KV memory holds: 15.7 thousand, 9.7 and 60.1 in the paper."""
        return self.kv_bytes // self.kv_bytes_per_token

    def memory(self, block_size: int = 16) -> Memory:
        return Memory(self.num_slots // block_size, block_size)

    @property
    def costs(self) -> RooflineCosts:
        """Several accelerators share all the work evenly and talk to each other in no time."""
        return RooflineCosts(
            flops=self.accelerator.flops * self.num_accelerators,
            bytes_per_second=self.accelerator.bytes_per_second * self.num_accelerators,
            weight_bytes=self.num_parameters * BYTES_PER_NUMBER,
            flops_per_token=2 * self.num_parameters,
            flops_per_pair=4 * self.num_layers * self.hidden_size,
            kv_bytes_per_token=self.kv_bytes_per_token,
        )


OPT_13B = PaperModel("OPT-13B", 13e9, 40, 5120, A100_40GB, 1, 12 << 30)
OPT_66B = PaperModel("OPT-66B", 66e9, 64, 9216, A100_40GB, 4, 21 << 30)
OPT_175B = PaperModel("OPT-175B", 175e9, 96, 12288, A100_80GB, 8, 264 << 30)
