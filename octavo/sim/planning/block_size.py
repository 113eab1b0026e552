"""How many tokens a block should have: large ones leave more of their last one empty, small ones are looked after more
often."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.sim.costs import CostModel, StepWork, served_seconds
from octavo.sim.traces.request import TracedRequest

BLOCK_SIZES = (8, 16, 32, 64, 128)

TILE_TOKENS = 16
"""Positions that the kernels read at a time: blocks that are no multiple of it are gathered first, which takes several
times as long."""


class BlockChoice(NamedTuple):
    """``tail_waste``: share of the held slots that no token fills; ``overhead``: share of the time of a token."""

    block_size: int
    tail_waste: float
    overhead: float

    @property
    def loss(self) -> float:
        return self.tail_waste + self.overhead


def block_choices(
    requests: Sequence[TracedRequest], costs: CostModel, batch_size: int, sizes: Iterable[int] = BLOCK_SIZES
) -> list[BlockChoice]:
    """What each size costs where ``batch_size`` sequences of these lengths generate. A sequence that grows from prompt
    to end leaves half a block empty on average."""
    mean = sum(each.prompt + each.output / 2 for each in requests) / len(requests)
    work = StepWork(num_decodes=batch_size, decode_context=round(mean * batch_size))
    token_seconds = served_seconds(costs, work) / batch_size
    context_seconds = token_seconds - served_seconds(costs, work._replace(decode_context=0)) / batch_size

    def overhead(size: int) -> float:
        slower = (costs.blocks.context_factor(size) - 1) * context_seconds
        return (costs.blocks.seconds / size + slower) / token_seconds

    return [BlockChoice(size, (size - 1) / 2 / (mean + (size - 1) / 2), overhead(size)) for size in sizes]


def advisable_sizes(costs: CostModel) -> Sequence[int]:
    """Those that may be advised, the smallest first: below ``TILE_TOKENS`` only where it was measured how much slower
    they are read."""
    measured = {size for size, _ in costs.blocks.context_factors}
    return tuple(size for size in BLOCK_SIZES if size % TILE_TOKENS == 0 or size in measured)


def advised(choices: Sequence[BlockChoice]) -> BlockChoice:
    return min(choices, key=lambda choice: choice.loss)
