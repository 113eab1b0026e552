"""The workloads of the comparison, and which engine takes part with which weights."""

import random
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.bench.compare.peers import python_of
from octavo.bench.compare.process import DRIVERS, EngineProcess

FIRST_ORDINARY_ID = 256
"""Prompts are drawn from the ids above: control tokens and single bytes stand below, in most vocabularies."""


@dataclass(frozen=True, slots=True)
class Cell:
    """``num_requests`` prompts that are there from the start, greedy, EOS ignored. ``shared_len``: tokens before each
    prompt that all have in common, as a system prompt is."""

    name: str
    num_requests: int
    prompt_len: int
    output_len: int
    shared_len: int = 0

    @property
    def num_counted(self) -> int:
        """Tokens that the cell's speed is of: new ones, or those of the prompt where there is but one new one."""
        tokens = self.prompt_len if self.output_len == 1 else self.output_len
        return self.num_requests * tokens

    @property
    def max_tokens(self) -> int:
        """Of one sequence."""
        return self.shared_len + self.prompt_len + self.output_len

    def prompts(self, vocab_size: int, source: random.Random) -> list[list[int]]:
        """Random ids; new ones each time, so that no cache of an earlier run holds them."""
        shared = _draw(self.shared_len, vocab_size, source)
        return [shared + _draw(self.prompt_len, vocab_size, source) for _ in range(self.num_requests)]


CELLS = {
    cell.name: cell
    for cell in (
        Cell("1x32", 1, 32, 128),
        Cell("8x32", 8, 32, 128),
        Cell("32x32", 32, 32, 128),
        Cell("32x256", 32, 256, 128),
        Cell("prefill", 1, 512, 1),
        Cell("shared", 32, 32, 32, shared_len=1000),
    )
}
PLAIN = frozenset(CELLS) - {"shared"}
SHARED = frozenset({"shared"})


@dataclass(frozen=True, slots=True)
class System:
    """An engine with the weights that it computes with.

    Its ratios are to Octavo in the same ``group``: weights of as many bits. ``weights``: which file it loads
    (``models.model_as``). ``peer`` None: Octavo, in this environment. ``driver``: "module:Class" in ``folder``.
    """

    engine: str
    weights: str
    group: str
    driver: str
    peer: str | None = None
    cells: Collection[str] = frozenset(CELLS)
    folder: Path = DRIVERS

    def name(self, stored_kind: str) -> str:
        """``stored_kind``: what the stored weights are called."""
        kinds = {"stored": stored_kind} if self.group != "float32" else dict.fromkeys(("stored", "float32"), "fp32")
        return f"{self.engine} {kinds.get(self.weights, self.weights)}"

    def start(self, name: str) -> EngineProcess:
        """Its process; nothing is loaded yet."""
        python = python_of(self.peer) if self.peer else Path(sys.executable)
        return EngineProcess(name, python, self.driver, self.folder)


SYSTEMS = (
    System("Octavo", "stored", "stored", "octavo_driver:Engine"),
    System("llama.cpp", "stored", "stored", "llama_cpp_driver:Engine", "llama.cpp", PLAIN),
    System("llama.cpp", "Q4_0", "stored", "llama_cpp_driver:Engine", "llama.cpp", PLAIN),
    System("llama-server", "Q4_0", "stored", "llama_server_driver:Engine", "llama.cpp", SHARED),
    System("OpenVINO", "stored", "stored", "openvino_driver:Engine", "openvino"),
    System("Octavo", "Q8_0", "Q8_0", "octavo_driver:Engine"),
    System("llama.cpp", "Q8_0", "Q8_0", "llama_cpp_driver:Engine", "llama.cpp", PLAIN),
    System("OpenVINO", "Q8_0", "Q8_0", "openvino_driver:Engine", "openvino"),
    System("Octavo", "stored", "float32", "octavo_driver:Float32Engine"),
    System("transformers", "float32", "float32", "transformers_driver:Engine", "transformers", PLAIN),
    System("vLLM", "float32", "float32", "vllm_driver:Engine", "vllm"),
)
GROUPS = ("stored", "Q8_0", "float32")


def _draw(count: int, vocab_size: int, source: random.Random) -> list[int]:
    first = min(FIRST_ORDINARY_ID, vocab_size - 1)
    return [source.randrange(first, vocab_size) for _ in range(count)]


def taking_part(cell: Cell, systems: Collection[System]) -> Iterator[System]:
    """Those of ``systems`` that run ``cell``, Octavo only where a peer of its group does."""
    groups = {system.group for system in systems if system.peer and cell.name in system.cells}
    return (system for system in systems if cell.name in system.cells and system.group in groups)
