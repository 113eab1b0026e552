"""How many tokens a block should have: large ones leave more of their last one empty, small ones are looked after more
often."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.sim.costs import CostModel, StepWork, served_seconds
from octavo.sim.traces.request import TracedRequest

BLOCK_SIZES = (8, 16, 32, 64, 128)

BLOCK_SECONDS = 20e-6
"""To give a sequence one more block, to name it and to tell the runner: about what Octavo's own bookkeeping takes
(`octavo bench scheduler`, docs/benchmarks.md)."""


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
    return [
        BlockChoice(size, (size - 1) / 2 / (mean + (size - 1) / 2), BLOCK_SECONDS / size / token_seconds)
        for size in sizes
    ]


def advised(choices: Sequence[BlockChoice]) -> BlockChoice:
    return min(choices, key=lambda choice: choice.loss)
