"""What is known of reuse: how surely, and how soon, released blocks of a kind are wanted again.

Ages are counted in blocks released since, so that no clock is read, and in buckets that grow geometrically.
"""

AGES_PER_OCTAVE = 2
FIRST_OCTAVE, LAST_OCTAVE = -4, 6
"""The first age bucket ends at 1/16 of the pool's size, for little is evicted that young; the last begins at 64 times
it: what waits longer is not told apart."""
PRIOR_WEIGHT = 20.0
"""Releases that the rates of all kinds together count for in those of one kind."""
MAX_PRIOR_RATIO = 30.0
"""Most by which the reuses of one kind may scale that prior."""
NEIGHBOUR_WEIGHT = 0.25
"""Share of a rate that comes from each of the two ages beside it."""
REFRESH_SHARE = 1 / 16
"""Events, as a share of those counted so far, after which a kind's worth is computed anew."""


def age_edges(num_blocks: int) -> list[int]:
    """Where each age bucket begins, in blocks released, for a pool of ``num_blocks``."""
    steps = range(FIRST_OCTAVE * AGES_PER_OCTAVE, LAST_OCTAVE * AGES_PER_OCTAVE + 1)
    edges = [0]
    for step in steps:
        edges.append(max(edges[-1] + 1, int(num_blocks * 2 ** (step / AGES_PER_OCTAVE))))
    return edges


class ReuseStatistics:
    """Hazard rates of reuse by kind and age, and what they make a block of that kind and age worth.

    Counts, for each kind and age bucket, the released blocks that came to that age unused and those reused in it. As in
    Kaplan and Meier ("Nonparametric Estimation from Incomplete Observations", JASA 1958), a block that is forgotten
    before it is reused counts for the ages that it was seen at. A kind seen seldom leans on the rates of all kinds
    together, scaled to its own number of reuses.

    The worth of a block is its Gittins index: the most hits, a block and unit of time, that any plan "keep it until it
    is so old" can expect from here on. It is the hit density of "LHD: Improving Cache Hit Rate by Maximizing Hit
    Density" (Beckmann, Chen, Cidon; NSDI 2018, section 3) without its dependence on what was evicted so far. A block
    whose reuse is due gains worth with age, where an order by recency lets it only lose.
    """

    def __init__(self, edges: list[int], num_kinds: int, max_releases: int) -> None:
        """``edges``: see ``age_edges``. A kind released ``max_releases`` times counts its past half from then on."""
        num_ages = len(edges)
        self.worth = [[0.0] * num_ages for _ in range(num_kinds)]
        """Hits a block and unit of time, [kind][age]."""
        self._lengths = [end - start for start, end in zip(edges, [*edges[1:], 2 * edges[-1]], strict=True)]
        self._reached = [[0.0] * num_ages for _ in range(num_kinds)]
        self._reused = [[0.0] * num_ages for _ in range(num_kinds)]
        self._all_reached = [0.0] * num_ages
        self._all_reused = [0.0] * num_ages
        self._max_releases = max_releases
        self._events = [0] * num_kinds
        self._due = [1.0] * num_kinds

    def count_reached(self, kind: int, age: int, num_blocks: int) -> None:
        """These blocks came to this age unused (age 0: they were released)."""
        self._reached[kind][age] += num_blocks
        self._all_reached[age] += num_blocks
        self._events[kind] += num_blocks

    def count_reused(self, kind: int, age: int) -> None:
        """A block was reused at this age."""
        self._reused[kind][age] += 1
        self._all_reused[age] += 1
        self._events[kind] += 1

    def refresh(self, kind: int) -> bool:
        """Compute the worth of a kind anew if enough has happened to it; False if not."""
        if self._events[kind] < self._due[kind]:
            return False
        if self._reached[kind][0] > self._max_releases:
            self._halve(kind)
        self._due[kind] = self._events[kind] * (1 + REFRESH_SHARE) + 1
        self.worth[kind] = self._indices(self._hazards(kind))
        return True

    def _halve(self, kind: int) -> None:
        """Let the past of a kind count half, so that the statistics follow a load that changes."""
        for counts, sums in ((self._reached, self._all_reached), (self._reused, self._all_reused)):
            counts[kind] = [count / 2 for count in counts[kind]]
            for age, count in enumerate(counts[kind]):
                sums[age] -= count
        self._events[kind] //= 2

    def _hazards(self, kind: int) -> list[float]:
        """Chance, by age, that a block that came to this age unused is reused in it."""
        reached, reused = self._reached[kind], self._reused[kind]
        rates = [
            num_reused / num_reached if num_reached else 0.0
            for num_reused, num_reached in zip(self._all_reused, self._all_reached, strict=True)
        ]
        expected = sum(rate * count for rate, count in zip(rates, reached, strict=True))
        ratio = min(MAX_PRIOR_RATIO, (PRIOR_WEIGHT + sum(reused)) / (PRIOR_WEIGHT + expected))
        densities = [
            (num_reused + PRIOR_WEIGHT * rate * ratio) / (num_reached + PRIOR_WEIGHT) / length
            for num_reused, num_reached, rate, length in zip(reused, reached, rates, self._lengths, strict=True)
        ]
        smooth = [
            NEIGHBOUR_WEIGHT * (before + after) + (1 - 2 * NEIGHBOUR_WEIGHT) * density
            for before, density, after in zip(
                [densities[0], *densities[:-1]], densities, [*densities[1:], densities[-1]], strict=True
            )
        ]
        return [min(1.0, density * length) for density, length in zip(smooth, self._lengths, strict=True)]

    def _indices(self, hazards: list[float]) -> list[float]:
        """Gittins index by age.

        Over the expected block-time spent and hits earned by keeping a block up to each age, the index at an age is
        the steepest slope from that point to a later one: that of the concave hull, found from the right.
        """
        times, hits, survival = [0.0], [0.0], 1.0
        for hazard, length in zip(hazards, self._lengths, strict=True):
            times.append(times[-1] + survival * (1 - hazard / 2) * length)
            hits.append(hits[-1] + survival * hazard)
            survival = max(survival * (1 - hazard), 1e-9)  # never none, so that times go on growing
        last = len(hazards)
        slopes, ends = [0.0] * last, [last] * last
        for age in range(last - 1, -1, -1):
            end = age + 1
            slope = (hits[end] - hits[age]) / (times[end] - times[age])
            while end < last and slopes[end] > slope:
                end = ends[end]
                slope = (hits[end] - hits[age]) / (times[end] - times[age])
            slopes[age], ends[age] = slope, end
        return slopes
