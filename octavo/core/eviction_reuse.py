"""Eviction by learned rates of reuse: keep what is likeliest to be wanted again for the memory and time it takes."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby

from octavo.core.eviction_statistics import ReuseStatistics, age_edges

MAX_USES = 7
"""Reuses of a block that are told apart."""
NUM_INTERVALS = 4
"""Lengths of the last interval between two uses that are told apart (0: there was none, or a very short one)."""
NUM_DEPTHS = 4
"""Depths in a chain that are told apart: 0 to 2 blocks above, 3 to 14, 15 to 62, more."""
NUM_KINDS = (MAX_USES + 1) * NUM_INTERVALS * NUM_DEPTHS * 2
GHOSTS_PER_BLOCK = 16
"""Evicted contents that are remembered by name, for each block of the pool. Most reuses come after a small pool has
evicted, and only these teach it to keep what they wanted."""

MIN_SWEEP = 1024
"""Entries in queues below which a sweep is not worth it."""


class _Cohort:
    """Blocks of one kind that were released together. All are of the same age; the tail of the chain goes first."""

    __slots__ = ("age", "blocks", "born", "kind", "num_unused")

    def __init__(self, kind: int, born: int, block_ids: Sequence[int]) -> None:
        """``block_ids``: tail first."""
        self.kind = kind
        self.born = born
        self.age = 0  # its bucket
        self.blocks = dict.fromkeys(reversed(block_ids))  # still cached, parents before their children
        self.num_unused = len(block_ids)  # cached, or evicted and remembered: not reused so far


class ReuseEvictor:
    """Evicts the block that is worth least by ``ReuseStatistics``, leaf first.

    A block's kind is what was seen of it: how often it was reused, after how long the last time, how deep it lies in
    its chain, and whether it is the chain's end. What was evicted is remembered by name for a while (ghosts), so that a
    reuse that came too late is learned from as well. So prompts that nobody is known to continue make room for
    conversations that are going on, and a block that nobody wants soon for one whose time has come.

    Cohorts age together: each waits in a queue for the next age, and, while it has blocks, in the queue of its kind and
    age, where the oldest goes first. A heap holds those queues by what their blocks are worth. A block with children in
    here is passed over until they are gone.
    """

    def __init__(self, names: Sequence[bytes | None]) -> None:
        """``names``: the contents of each block of the pool by id, as the pool keeps them up to date."""
        num_blocks = len(names)
        self._names = names
        self._edges = age_edges(num_blocks)
        self._statistics = ReuseStatistics(self._edges, NUM_KINDS, max_releases=self._edges[-1])
        self._now = 0  # blocks released so far
        self._cohorts: OrderedDict[int, _Cohort] = OrderedDict()  # of each block in here, least recently used first
        self._ghosts: OrderedDict[bytes, _Cohort] = OrderedDict()
        self._max_ghosts = GHOSTS_PER_BLOCK * num_blocks
        self._history = [0] * num_blocks  # of blocks that were reused and are in use: uses and last interval
        # One place more, so that "no parent" (-1) needs no question.
        self._parents = [-1] * num_blocks
        self._num_children = [0] * (num_blocks + 1)
        self._ageing: list[deque[_Cohort]] = [deque() for _ in self._edges]
        self._queues: dict[tuple[int, int], deque[_Cohort]] = {}  # by kind and age
        self._num_queued = 0
        self._heap: list[tuple[float, int, int]] = []  # worth, minus age, kind
        self._listed: set[tuple[int, int]] = set()  # kinds and ages that are in the heap
        self._blocked: dict[int, _Cohort] = {}  # cohorts passed over, by the block that has children

    @property
    def num_ghosts(self) -> int:
        """Evicted contents that are remembered."""
        return len(self._ghosts)

    def add(self, block_ids: Iterable[int], above: Sequence[int] = ()) -> None:
        chain = list(block_ids)
        if not chain:
            return
        self._now += len(chain)
        self._grow_older()
        self._link(chain, above)
        kinds = self._kinds(chain, len(above))
        position = 0
        for kind, same in groupby(kinds):
            start, position = position, position + len(list(same))
            self._add_cohort(kind, chain[start:position])
        for kind in set(kinds):
            self._refresh(kind)

    def remove(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            cohort = self._leave(block_id)
            self._history[block_id] = self._reuse(cohort)
            if self._blocked.pop(block_id, None) is not None:
                self._enqueue(cohort)

    def evict(self, count: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < count:
            queue = self._least_queue()
            cohort = queue[0]
            while cohort.blocks and len(evicted) < count:
                block_id = next(reversed(cohort.blocks))
                if self._num_children[block_id]:
                    self._blocked[block_id] = cohort
                    queue.popleft()
                    break
                evicted.append(self._evict_block(block_id))
        return evicted

    def evict_least_recent(self, count: int) -> list[int]:
        """Give up by recency, whatever blocks are worth: learning goes on."""
        return [self._evict_block(next(iter(self._cohorts))) for _ in range(count)]

    def __len__(self) -> int:
        return len(self._cohorts)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._cohorts

    # Chains

    def _add_cohort(self, kind: int, block_ids: list[int]) -> None:
        """Enter a piece of a chain, given tail first, whose blocks are of one kind."""
        cohort = _Cohort(kind, self._now, block_ids)
        self._cohorts.update(dict.fromkeys(block_ids, cohort))
        self._statistics.count_reached(kind, 0, cohort.num_unused)
        self._ageing[0].append(cohort)
        self._enqueue(cohort)

    def _link(self, chain: list[int], above: Sequence[int]) -> None:
        """Note the parent of each block of a chain, given tail first."""
        for block_id, parent_id in zip(chain, [*chain[1:], above[0] if above else -1], strict=True):
            self._parents[block_id] = parent_id
            self._num_children[parent_id] += 1

    def _leave(self, block_id: int) -> _Cohort:
        """Take a block out; its parent may have become a leaf."""
        cohort = self._cohorts.pop(block_id)
        del cohort.blocks[block_id]
        parent_id = self._parents[block_id]
        self._num_children[parent_id] -= 1
        if self._blocked and not self._num_children[parent_id] and parent_id in self._blocked:
            self._enqueue(self._blocked.pop(parent_id))
        return cohort

    # What is known of a block

    def _kinds(self, chain: list[int], num_above: int) -> list[int]:
        """The kind of each block of a chain, given tail first. A block was used at least as often as those after it."""
        kinds, history, is_end, depth = [], 0, 1, num_above + len(chain)
        for block_id in chain:
            history = max(history, self._history[block_id] or self._recall(block_id))
            self._history[block_id] = 0
            depth_level = min(NUM_DEPTHS - 1, (depth.bit_length() - 1) // 2)
            kinds.append((history * NUM_DEPTHS + depth_level) * 2 + is_end)
            is_end = 0
            depth -= 1
        return kinds

    def _reuse(self, cohort: _Cohort) -> int:
        """A block of this cohort is reused: count it, and say what is now known of it."""
        self._statistics.count_reused(cohort.kind, cohort.age)
        cohort.num_unused -= 1
        uses = cohort.kind // (NUM_INTERVALS * NUM_DEPTHS * 2) + 1
        interval = 1 + cohort.age * (NUM_INTERVALS - 1) // len(self._edges) if cohort.age else 0
        return min(uses, MAX_USES) * NUM_INTERVALS + interval

    def _evict_block(self, block_id: int) -> int:
        """Take a block out, and remember its contents."""
        cohort = self._leave(block_id)
        name = self._names[block_id]
        assert name is not None, "the pool drops names after eviction"
        self._ghosts[name] = cohort
        if len(self._ghosts) > self._max_ghosts:
            self._ghosts.popitem(last=False)[1].num_unused -= 1
        return block_id

    def _recall(self, block_id: int) -> int:
        """What is known of contents that were computed: nothing (0), or what was known when they were evicted."""
        name = self._names[block_id]
        cohort = None if name is None else self._ghosts.pop(name, None)
        return 0 if cohort is None else self._reuse(cohort)

    # Order

    def _grow_older(self) -> None:
        """Move cohorts on to the age that they have come to."""
        for age, (queue, edge) in enumerate(zip(self._ageing, self._edges[1:], strict=False), 1):
            while queue and self._now - queue[0].born >= edge:
                cohort = queue.popleft()
                if not cohort.num_unused:
                    continue
                cohort.age = age
                if age + 1 < len(self._edges):
                    self._ageing[age].append(cohort)
                self._statistics.count_reached(cohort.kind, age, cohort.num_unused)
                if cohort.blocks:
                    self._enqueue(cohort)

    def _enqueue(self, cohort: _Cohort) -> None:
        key = (cohort.kind, cohort.age)
        self._queues.setdefault(key, deque()).append(cohort)
        self._num_queued += 1
        self._list(*key)
        if self._num_queued > 2 * len(self._cohorts) + MIN_SWEEP:
            self._sweep()

    def _sweep(self) -> None:
        """Drop what stands in a queue and should not any more: cohorts are not taken out when they age or empty."""
        for (kind, age), queue in list(self._queues.items()):
            kept = deque(dict.fromkeys(cohort for cohort in queue if cohort.age == age and cohort.blocks))
            if kept:
                self._queues[kind, age] = kept
            else:
                del self._queues[kind, age]
                self._listed.discard((kind, age))
        self._num_queued = sum(map(len, self._queues.values()))
        self._heap = [(self._statistics.worth[kind][age], -age, kind) for kind, age in self._listed]
        heapify(self._heap)

    def _list(self, kind: int, age: int) -> None:
        if (kind, age) not in self._listed:
            self._listed.add((kind, age))
            heappush(self._heap, (self._statistics.worth[kind][age], -age, kind))

    def _refresh(self, kind: int) -> None:
        """Compute the worth of a kind anew if it is due, and place its queues in the heap by it."""
        if self._statistics.refresh(kind):
            for age in range(len(self._edges)):
                if (kind, age) in self._listed:
                    heappush(self._heap, (self._statistics.worth[kind][age], -age, kind))

    def _least_queue(self) -> deque[_Cohort]:
        """The queue of the cohort that is worth least."""
        while True:
            worth, minus_age, kind = self._heap[0]
            age = -minus_age
            queue = self._queues[kind, age]
            while queue and (queue[0].age != age or not queue[0].blocks):
                queue.popleft()
            if queue and worth == self._statistics.worth[kind][age]:
                return queue
            heappop(self._heap)
            if not queue:
                self._listed.discard((kind, age))
