"""Whether the blocks that admitted work is likely to need are there: the predicted peak, at a chosen confidence."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from statistics import NormalDist
from typing import NamedTuple

from octavo.core.kv_types import PrefixHit
from octavo.core.output_lengths import HORIZONS, SurvivalCurve
from octavo.core.population import Population
from octavo.core.request import Request
from octavo.core.tenants import DEFAULT_TENANT

CurveOf = Callable[[str], SurvivalCurve]
"""How long the answers of a tenant are."""


class Outlook(NamedTuple):
    """What is likely to become of one sequence. ``held``: blocks that come free when it ends; ``num_tokens``: that it
    has; ``most``: it may still get; ``num_groups``: layer groups in which it grows; ``hazards``: see
    ``SurvivalCurve.row``."""

    held: int
    num_tokens: int
    most: int
    num_groups: int
    hazards: Sequence[float]


class Foresight:
    """Predicts how many blocks running sequences and one more will hold at each of ``HORIZONS``.

    Each grows by a token a step until it ends and then gives back what it alone holds. How much comes free until a
    horizon is what ends for certain, by its ``max_tokens``, and a sum of independent gains. What this sum reaches with
    probability ``quantile`` follows from its mean and variance (a gamma distribution, in the approximation of Wilson
    and Hilferty), and is nothing where that nobody ends is likelier than the rest. ``quantile`` 0: whatever comes, it
    fits.
    """

    def __init__(self, quantile: float, population: Population) -> None:
        self._quantile = quantile
        self._deviate = NormalDist().inv_cdf(1 - quantile) if quantile else 0.0
        self._population = population
        self._kv = population.kv
        self._block_size, self._num_groups = self._kv.config.block_size, self._kv.config.num_groups
        self._slack = 0
        """Blocks that were to spare, with all that runs at its longest, less what was admitted since. Sequences that
        grow or end do not lessen it."""

    def fits(self, newcomer: Request, hit: PrefixHit, num_free: int) -> bool:
        """Will the peak fit with ``newcomer``, of which ``hit`` is cached, where ``num_free`` blocks are free and owed
        to nobody?"""
        if not self._quantile:
            return True
        most = self._kv.num_blocks_for(newcomer.max_total_tokens)
        if self._slack < most:
            self._slack = self._num_to_spare(num_free)
        if self._slack >= most:
            self._slack -= most
            return True
        num_taken = self._kv.num_taken(hit, newcomer.num_tokens)
        return self._peak_fits(self._outlooks(newcomer, num_taken), num_free - num_taken)

    def most_tokens(self, num_tokens: int, max_total: int, num_free: int) -> int:
        """The longest prompt of up to ``num_tokens``, of a tenant that nothing is known of and nothing of it cached, of
        a sequence that may grow to ``max_total``, that ``fits`` would let in. Remembers nothing."""
        if not self._quantile or self._num_to_spare(num_free) >= self._kv.num_blocks_for(max_total):
            return num_tokens
        curve = cache(partial(self._population.output_lengths.curve_now, self._under_way()))
        outlooks = [self._next_outlook(request, curve) for request in self._population.running]
        hazards = curve(DEFAULT_TENANT).row(0)

        def is_too_long(length: int) -> bool:
            num_taken = self._kv.num_blocks_for(length)
            newcomer = Outlook(num_taken, length, max_total - length, self._num_growing_groups(length), hazards)
            return not self._peak_fits([*outlooks, newcomer], num_free - num_taken)

        return bisect_left(range(1, num_tokens + 1), True, key=is_too_long)

    def leaves_way(self, newcomer: Request, hit: PrefixHit, num_free: int, wanted: Iterable[tuple[int, int]]) -> bool:
        """Will those that ``newcomer`` passes come in by themselves, one after another? ``wanted``: of each how many
        blocks it needs, and within how many steps."""
        if not self._quantile:
            return True
        num_taken = self._kv.num_taken(hit, newcomer.num_tokens)
        outlooks, needed = self._outlooks(newcomer, num_taken), 0
        for num_blocks, num_steps in wanted:
            needed += num_blocks
            place = bisect_right(HORIZONS, num_steps) - 1
            change = self._least_change(outlooks, place) if place >= 0 else 0
            if num_free - num_taken + change < needed:
                return False
        return True

    def _num_to_spare(self, num_free: int) -> int:
        """Blocks left over with all that runs at its longest."""
        return num_free - sum(map(self._num_to_come, self._population.running))

    def _num_to_come(self, request: Request) -> int:
        assert request.tables is not None
        return self._kv.num_owed_blocks(request.tables, request.max_total_tokens)

    def _num_held(self, request: Request) -> int:
        """Blocks that come free when it ends; all of its own, where nobody shares any."""
        assert request.tables is not None
        if self._kv.pool.num_shared:
            return self._kv.num_exclusive_blocks(request.tables)
        return sum(map(len, request.tables.live_groups))

    def _outlooks(self, newcomer: Request, num_taken: int) -> list[Outlook]:
        """Those of all that run, and of ``newcomer`` beside them."""
        curve = partial(self._population.output_lengths.curve, self._under_way())
        return [*self._running_outlooks(curve), self._outlook(newcomer, num_taken, curve)]

    def _running_outlooks(self, curve: CurveOf) -> list[Outlook]:
        return [self._outlook(request, self._num_held(request), curve) for request in self._population.running]

    def _next_outlook(self, request: Request, curve: CurveOf) -> Outlook:
        """That of a running request once the next step is planned: nobody is admitted before."""
        assert request.tables is not None
        num_tokens = request.num_planned_tokens
        held = self._num_held(request) + self._kv.num_owed_blocks(request.tables, num_tokens)
        outlook = self._outlook(request, held, curve)
        draws = num_tokens - request.num_computed_tokens == 1 and outlook.most > 0
        return outlook._replace(num_tokens=num_tokens + 1, most=outlook.most - 1) if draws else outlook

    def _under_way(self) -> list[tuple[str, int]]:
        return [(request.tenant, request.num_output_tokens) for request in self._population.running]

    def _outlook(self, request: Request, held: int, curve: CurveOf) -> Outlook:
        num_tokens = request.num_planned_tokens
        hazards = curve(request.tenant).row(num_tokens - request.num_prompt_tokens)
        most = request.max_total_tokens - num_tokens
        return Outlook(held, num_tokens, most, self._num_growing_groups(num_tokens), hazards)

    def _num_growing_groups(self, num_tokens: int) -> int:
        """Layer groups in which a sequence needs more blocks as it grows: not those whose window is full."""
        windows = self._kv.config.windows
        return sum(window is None or num_tokens < window for window in windows) if windows else self._num_groups

    def _peak_fits(self, outlooks: list[Outlook], num_free: int) -> bool:
        """``num_free``: blocks left when each sequence has what it needs now."""
        size, num_groups = self._block_size, self._num_groups
        for place, ahead in enumerate(HORIZONS):
            if len(outlooks) * num_groups * -(-ahead // size) <= num_free:
                continue
            if self._least_change(outlooks, place) + num_free < 0:
                return False
        return True

    def _least_change(self, outlooks: list[Outlook], place: int) -> float:
        """Blocks that come free until horizon number ``place``, less those that are taken, with probability
        ``quantile``."""
        size, ahead = self._block_size, HORIZONS[place]
        growth = certain = 0
        nobody_ends = mean = variance = 0.0
        for held, num_tokens, most, num_groups, hazards in outlooks:
            steps = min(ahead, most)
            grown = (-(-(num_tokens + steps) // size) - -(-num_tokens // size)) * num_groups
            growth += grown
            gain = held + grown
            if steps == most:
                certain += gain
            else:
                hazard = hazards[place]
                going_on = math.exp(-hazard)
                nobody_ends += hazard
                mean += (1 - going_on) * gain
                variance += going_on * (1 - going_on) * gain * gain
        return certain + self._least_gain(nobody_ends, mean, variance) - growth

    def _least_gain(self, nobody_ends: float, mean: float, variance: float) -> float:
        """What comes free with probability ``quantile``."""
        if math.exp(-nobody_ends) >= 1 - self._quantile or not mean:
            return 0.0
        ninth = variance / (9 * mean * mean)
        return mean * max(0.0, 1 - ninth + self._deviate * math.sqrt(ninth)) ** 3
