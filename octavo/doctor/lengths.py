"""The lengths of a trace's requests, counted as they come, and what blocks of each size leave empty of them."""

from itertools import accumulate

from octavo.doctor.block_sizes import VERY_WASTEFUL, WASTEFUL, advised_of, overheads
from octavo.doctor.finding import Finding, Severity, graded
from octavo.doctor.words import number, share, times
from octavo.sim.planning.block_size import BLOCK_SIZES, BlockChoice
from octavo.sim.quantiles import Quantiles

LONG_TAIL, LONG_ANSWER = 10, 512


class EmptySlots:
    """Slots that hold no token, summed over all steps in which sequences grew."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.empty = 0
        self._before = [0, *accumulate(-length % block_size for length in range(block_size))]

    def add(self, prompt: int, output: int) -> None:
        """A sequence that held ``prompt`` tokens at first, one more in each of ``output`` steps."""
        self.empty += self._up_to(prompt + output) - self._up_to(prompt)

    def _up_to(self, length: int) -> int:
        """Of a sequence that held 0, 1, ... tokens, one less than ``length`` at last."""
        turns, rest = divmod(length, self.block_size)
        return turns * self._before[-1] + self._before[rest]


class LengthSummary:
    """``held``: tokens, summed over all steps in which sequences grew; ``num_steps``: how many these were."""

    def __init__(self, block_size: int) -> None:
        """``block_size``: that of the server."""
        self.block_size = block_size
        self.prompts, self.outputs = Quantiles(), Quantiles()
        self.held = self.num_steps = self.prompt_tokens = self.output_tokens = 0
        self._slots = [EmptySlots(size) for size in sorted({*BLOCK_SIZES, block_size})]

    @property
    def count(self) -> int:
        return self.prompts.count

    def add(self, prompt: int, output: int) -> None:
        self.prompts.add(prompt)
        self.outputs.add(output)
        self.prompt_tokens += prompt
        self.output_tokens += output
        self.held += output * prompt + output * (output - 1) // 2
        self.num_steps += output
        for slots in self._slots:
            slots.add(prompt, output)

    def choices(self) -> list[BlockChoice]:
        """What each size costs."""
        overhead = overheads(self.prompt_tokens / self.count, self.output_tokens / self.count, self._sizes())
        return [
            BlockChoice(slots.block_size, slots.empty / (self.held + slots.empty), each)
            for slots, each in zip(self._slots, overhead, strict=True)
        ]

    def _sizes(self) -> list[int]:
        return [slots.block_size for slots in self._slots]

    def chosen(self) -> BlockChoice:
        """That of the server."""
        return next(choice for choice in self.choices() if choice.block_size == self.block_size)

    def empty_tokens(self, block_size: int) -> float:
        """Slots of a sequence that are empty, on average."""
        return next(slots.empty for slots in self._slots if slots.block_size == block_size) / self.num_steps


def block_size(lengths: LengthSummary) -> Finding | None:
    """Blocks are large for such lengths."""
    now, better = lengths.chosen(), advised_of(lengths.choices())
    severity = graded(now.tail_waste, WASTEFUL, VERY_WASTEFUL)
    if severity is None or better.block_size >= now.block_size:
        return None
    more = (1 - better.tail_waste) / (1 - now.tail_waste) - 1
    return Finding(
        "block-size",
        severity,
        f"Blocks of {now.block_size} tokens leave {number(lengths.empty_tokens(now.block_size))} slots of a sequence "
        f"empty on average, {share(now.tail_waste)} of what it holds.",
        f"Serve with --block-size {better.block_size}.",
        f"{number(lengths.empty_tokens(better.block_size))} slots, {share(better.tail_waste)}, would be empty: room "
        f"for {share(more)} more tokens in the same memory.",
        {f"empty_share_{choice.block_size}": choice.tail_waste for choice in lengths.choices()},
    )


def long_tail(p50: float, p99: float, severity: Severity = Severity.NOTE) -> Finding | None:
    """A few answers are far longer than the others: quantiles of theirs, tokens."""
    if p99 < LONG_ANSWER or p99 < LONG_TAIL * p50:
        return None
    return Finding(
        "long-tail",
        severity,
        f"One answer in a hundred has {p99:,.0f} tokens or more, {times(p99 / max(1, p50))} the median of {p50:,.0f}: "
        "such hold their blocks for longest.",
        f"Bound max_tokens in the clients, at {p99:,.0f} or below (at a server octavo:tenant_generation_tokens shows "
        "whose they are).",
        "Memory comes back sooner, and fewer requests are preempted or wait.",
        {"p50": p50, "p99": p99},
    )
