"""What a token of a prompt costs, as measured: more, the more tokens stand before it."""

from collections.abc import Sequence
from typing import NamedTuple

from octavo.core.step import StepPlan

FIRST_OCTAVE = 8
"""Positions below 256 cost alike: attention is little of it there."""

SHARE = 1 / 3
"""Of a measurement, in what is known: about the last three steps count."""

MOST_TIMES = 1.25
"""A step counts for at most so many times what it should have taken, and at least for so small a part: other work of
the machine is no cost of tokens, and a few steps that it holds up would make all chunks smaller than need be."""


class Chunk(NamedTuple):
    """``num_tokens`` tokens from position ``start`` on."""

    start: int
    num_tokens: int


def chunks_of(plan: StepPlan) -> Sequence[Chunk]:
    """What a plan computes of prompts, but for their last tokens where these come alone: they cost what rows cost."""
    if plan.num_tokens == len(plan.row_ids) and all(plan.samples):
        return ()
    drafting = {drafts.row_id for drafts in plan.drafts}
    rows = zip(plan.row_ids, plan.starts, plan.counts, plan.samples, strict=True)
    return [
        Chunk(start, count)
        for row_id, start, count, samples in rows
        if (count > 1 or not samples) and row_id not in drafting
    ]


class PromptCosts:
    """Seconds a token, one figure for each octave of positions: attention over what stands before a token grows with
    its position, and a long prompt is on its way long enough for the figures to follow. An octave that was not measured
    yet is taken to cost what the one below it does."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    @property
    def most_seconds_per_token(self) -> float:
        """At the position where a token costs most, of those that were measured; 0 where none was."""
        return max(self._seconds.values(), default=0.0)

    def seconds_per_token(self, position: int) -> float:
        """0 where nothing was measured yet."""
        octave = _octave(position)
        if octave not in self._seconds:
            below = (known for known in self._seconds if known < octave)
            octave = max(below, default=min(self._seconds, default=0))
        return self._seconds.get(octave, 0.0)

    def note(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """These chunks together have taken so long."""
        expected = sum(chunk.num_tokens * self.seconds_per_token(chunk.start) for chunk in chunks)
        if not expected:
            self._begin(chunks, seconds)
            return
        times = min(MOST_TIMES, max(1 / MOST_TIMES, seconds / expected))
        news = {}
        for chunk in chunks:
            octave, seconds_per_token = _octave(chunk.start), self.seconds_per_token(chunk.start)
            news[octave] = seconds_per_token * (1 + (SHARE if octave in self._seconds else 1.0) * (times - 1))
        self._seconds |= news

    def _begin(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """The first chunks of all."""
        if seconds > 0:
            seconds_per_token = seconds / sum(chunk.num_tokens for chunk in chunks)
            self._seconds |= {_octave(chunk.start): seconds_per_token for chunk in chunks}


def _octave(position: int) -> int:
    return max(FIRST_OCTAVE, position.bit_length())
