"""How many tokens a block should have for sequences of known lengths."""

from octavo.sim.cost_text import DEFAULT, parse_costs
from octavo.sim.planning.block_size import BlockChoice, advised, block_choices
from octavo.sim.traces.request import TracedRequest

BATCH_SIZE = 256
"""Sequences that generate beside each other in the reckoning: as many as a server takes by default."""

WASTEFUL, VERY_WASTEFUL = 0.1, 0.3
"""Shares of the held slots that no token fills."""


def advised_size(prompt: float, output: float) -> BlockChoice:
    """As ``octavo plan`` advises it for sequences of such mean lengths, tokens."""
    mean = TracedRequest(0.0, max(1, round(prompt)), max(1, round(output)))
    return advised(block_choices([mean], parse_costs(DEFAULT), BATCH_SIZE))


def expected_waste(block_tokens: float, prompt: float, output: float) -> float:
    """Share of the held slots that no token fills, of a sequence that grows from its prompt to its end: half a block on
    average."""
    empty = (block_tokens - 1) / 2
    return empty / (prompt + output / 2 + empty)
