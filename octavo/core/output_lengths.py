"""How long answers turn out: what has been seen of them, and what that says of one that is under way.

Lengths are counted in buckets that widen with the length, an eighth of an octave each, and old counts fade. An answer
that ended for another reason than its own (max_tokens, an abort) says only that it would have been longer: it leaves
those at risk without counting as an end (the estimator of Kaplan and Meier).
"""

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

HORIZONS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Steps ahead for which predictions are made."""

BUCKETS_AN_OCTAVE = 8
_EDGES: tuple[int, ...] = (
    *range(16),
    *(round(16 * math.exp2(i / BUCKETS_AN_OCTAVE)) for i in range(16 * BUCKETS_AN_OCTAVE + 1)),
)
"""Bucket i holds the lengths from edge i up to the next edge; the last has no end."""

_SEEN = 16
"""What one answer counts: whole numbers, so that halving them often enough forgets it."""

MEMORY = 1024
"""Answers that count: with twice as many, all counts are halved."""

PRIOR_EDGES = (16, 4096)
PRIOR_ANSWERS = 8
"""Before anything is known: so many answers, as many in each octave between these lengths."""

MIN_TENANT_ANSWERS = 64
"""With fewer, a tenant is taken to be like all."""

MAX_TENANTS = 64
"""Those that were seen last are kept apart."""


def bucket_of(num_tokens: int) -> int:
    return bisect_right(_EDGES, num_tokens) - 1


class SurvivalCurve:
    """How likely answers are to go on. ``hazards[i]``: the cumulative hazard up to edge i, minus the logarithm of the
    share that gets there."""

    def __init__(self, hazards: list[float]) -> None:
        self._hazards = hazards
        self._rows: dict[int, tuple[float, ...]] = {}

    def row(self, num_tokens: int) -> tuple[float, ...]:
        """For each of ``HORIZONS``: minus the logarithm of the chance that an answer of ``num_tokens`` so far does not
        end within as many tokens more."""
        bucket = bucket_of(num_tokens)
        row = self._rows.get(bucket)
        if row is None:
            start = _EDGES[bucket]
            row = self._rows[bucket] = tuple(self._at(start + ahead) - self._at(start) for ahead in HORIZONS)
        return row

    def _at(self, num_tokens: int) -> float:
        """Between edges along a straight line."""
        bucket = bucket_of(num_tokens)
        if bucket + 1 == len(_EDGES):
            return self._hazards[-1]
        before, after = self._hazards[bucket], self._hazards[bucket + 1]
        return before + (after - before) * (num_tokens - _EDGES[bucket]) / (_EDGES[bucket + 1] - _EDGES[bucket])


class LengthCounts:
    """Answers that ended (``ends``), or were last seen (``losses``), in each bucket."""

    def __init__(self) -> None:
        self._ends = [0] * len(_EDGES)
        self._losses = [0] * len(_EDGES)
        self._total = 0
        self._num_new = 0
        self._curve: SurvivalCurve | None = None

    @property
    def num_answers(self) -> int:
        return self._total // _SEEN

    def note(self, num_tokens: int, is_end: bool) -> None:
        (self._ends if is_end else self._losses)[bucket_of(num_tokens)] += _SEEN
        self._total += _SEEN
        self._num_new += 1
        if self._total >= 2 * MEMORY * _SEEN:
            self._ends = [count // 2 for count in self._ends]
            self._losses = [count // 2 for count in self._losses]
            self._total = sum(self._ends) + sum(self._losses)

    def curve(self, under_way: Iterable[int]) -> SurvivalCurve:
        """As of the last few answers: it is drawn anew when there are a thirty-second part more, or eight.
        ``under_way``: tokens so far of answers that have not ended; without them those that are soon over, and so are
        seen first, would seem to be all."""
        if self._curve is None or self._is_outdated:
            self._curve, self._num_new = SurvivalCurve(self._hazards(under_way)), 0
        return self._curve

    def curve_now(self, under_way: Iterable[int]) -> SurvivalCurve:
        """What ``curve`` would say. Remembers nothing."""
        return SurvivalCurve(self._hazards(under_way)) if self._curve is None or self._is_outdated else self._curve

    @property
    def _is_outdated(self) -> bool:
        return self._num_new > max(8, self.num_answers // 32)

    def _hazards(self, under_way: Iterable[int]) -> list[float]:
        ends = [seen + prior for seen, prior in zip(self._ends, _PRIOR, strict=True)]
        losses = self._losses.copy()
        for num_tokens in under_way:
            losses[bucket_of(num_tokens)] += _SEEN
        leaving = [end + loss for end, loss in zip(ends, losses, strict=True)]
        at_risk = list(accumulate(reversed(leaving)))[::-1]
        shares = (
            end / (there - loss / 2) if end else 0.0 for end, loss, there in zip(ends, losses, at_risk, strict=True)
        )
        # The last answer seen is not the longest there can be.
        steps = [-math.log(1 - min(share, 0.99)) for share in shares]
        return list(accumulate(steps[:-1], initial=0.0))


def _prior() -> list[float]:
    first, last = map(bucket_of, PRIOR_EDGES)
    return [PRIOR_ANSWERS * _SEEN / (last - first) if first <= i < last else 0.0 for i in range(len(_EDGES))]


_PRIOR = _prior()


class OutputLengths:
    """The same of all, and of each tenant that has been seen often enough to tell."""

    def __init__(self) -> None:
        self._all = LengthCounts()
        self._tenants: OrderedDict[str, LengthCounts] = OrderedDict()

    def note(self, num_tokens: int, is_end: bool, tenant: str) -> None:
        """An answer has ended after ``num_tokens``; by itself (``is_end``), or it was cut off there."""
        self._all.note(num_tokens, is_end)
        counts = self._tenants.setdefault(tenant, LengthCounts())
        counts.note(num_tokens, is_end)
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)

    def curve(self, under_way: Sequence[tuple[str, int]], tenant: str) -> SurvivalCurve:
        """See ``LengthCounts.curve``; ``under_way``: tenants and tokens so far."""
        counts = self._told_apart(tenant)
        return (counts or self._all).curve(_lengths(under_way, tenant if counts else None))

    def curve_now(self, under_way: Sequence[tuple[str, int]], tenant: str) -> SurvivalCurve:
        """What ``curve`` would say. Remembers nothing."""
        counts = self._told_apart(tenant)
        return (counts or self._all).curve_now(_lengths(under_way, tenant if counts else None))

    def _told_apart(self, tenant: str) -> LengthCounts | None:
        """None: it is taken to be like all."""
        counts = self._tenants.get(tenant)
        return None if counts is None or counts.num_answers < MIN_TENANT_ANSWERS else counts


def _lengths(under_way: Iterable[tuple[str, int]], tenant: str | None) -> Iterator[int]:
    """Those of a tenant; None: of all."""
    return (num_tokens for owner, num_tokens in under_way if tenant is None or owner == tenant)
