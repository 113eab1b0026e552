"""What every way to give KV memory to sequences is given."""

from dataclasses import dataclass

MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Memory:
    """What every system is given. The token budget is large, so that it is memory that requests wait for: with a
    small one sequences end as fast as prompts can be computed, and no memory is ever full."""

    num_blocks: int
    block_size: int = 16
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS
    max_num_seqs: int = MAX_NUM_SEQS

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size
