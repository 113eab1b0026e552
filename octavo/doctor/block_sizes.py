"""How many tokens a block should have for sequences of known lengths."""

from collections.abc import Iterable, Sequence

from octavo.sim.cost_text import DEFAULT, parse_costs
from octavo.sim.planning.block_size import BLOCK_SIZES, BlockChoice, advisable_sizes, advised, block_choices
from octavo.sim.traces.request import TracedRequest

BATCH_SIZE = 256
"""Sequences that generate beside each other in the reckoning: as many as a server takes by default."""

WASTEFUL, VERY_WASTEFUL = 0.1, 0.3
"""Shares of the held slots that no token fills."""

ADVISABLE = advisable_sizes(parse_costs(DEFAULT))


def _choices(prompt: float, output: float, sizes: Iterable[int] = BLOCK_SIZES) -> list[BlockChoice]:
    """As ``octavo plan`` has them for sequences of such mean lengths, tokens."""
    mean = TracedRequest(0.0, max(1, round(prompt)), max(1, round(output)))
    return block_choices([mean], parse_costs(DEFAULT), BATCH_SIZE, sizes)


def advised_size(prompt: float, output: float) -> BlockChoice:
    return advised(_choices(prompt, output, ADVISABLE))


def overheads(prompt: float, output: float, sizes: Iterable[int]) -> list[float]:
    """Share of the time of a token that looking after blocks of each size takes."""
    return [choice.overhead for choice in _choices(prompt, output, sizes)]


def advised_of(choices: Sequence[BlockChoice]) -> BlockChoice:
    """Of the sizes that are advised at all."""
    return advised([choice for choice in choices if choice.block_size in ADVISABLE])


def expected_waste(block_tokens: float, prompt: float, output: float) -> float:
    """Share of the held slots that no token fills, of a sequence that grows from its prompt to its end: half a block on
    average."""
    empty = (block_tokens - 1) / 2
    return empty / (prompt + output / 2 + empty)
