"""What must always hold between pool, tables and queues; checked by tests, by the simulator and in sanitizer mode."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.pool import BlockPool
from octavo.core.request import UNRANKED, Request, Status
from octavo.core.scheduler import Scheduler
from octavo.core.step import NO_BLOCK, StepPlan
from octavo.core.table import BlockTables, SwappedTables


class InvariantError(AssertionError):
    """The bookkeeping contradicts itself: a fault in Octavo."""


def _require(condition: bool, message: str, *values: object) -> None:
    """``message`` is put together, with %, only where it is needed: this runs for every block after every step."""
    if not condition:
        raise InvariantError(message % values)


def check_cache(kv: KVCacheManager, tables: Iterable[BlockTables], swapped: Iterable[SwappedTables] = ()) -> None:
    """Reference counts equal occurrences; free, cached and used blocks add up; name index and blocks agree; in the
    pool and in the host's.

    Raises:
        InvariantError: says which block and how.
    """
    pins = kv.keeping.pins
    counts = Counter(kv.held_blocks) + pins.references
    _require(pins.num_claimed <= pins.max_blocks, f"pins claim {pins.num_claimed} blocks of {pins.max_blocks}")
    for block_id in pins.references:
        _require(kv.pool.names[block_id] is not None, f"block {block_id} is pinned, and nobody can find it")
    for table in tables:
        for number, (group, live) in enumerate(zip(table.groups, table.live_groups, strict=True)):
            _require(len(set(live)) == len(live), "a table holds a block twice")
            _require(len(group) == table.num_blocks, "tables of one sequence differ in length")
            _require(set(group[: table.starts[number]]) <= {NO_BLOCK}, "a table has a block that it gave back")
            _require(NO_BLOCK not in live, "a table lacks a block")
            _require(len(live) <= kv.config.most_blocks(number), "%s blocks: more than a window needs", len(live))
            counts.update(live)
    _check_pool(kv.pool, counts)
    host_counts = Counter(kv.host.held_blocks)
    for kept in swapped:
        host_counts.update(block_id for group in kept.host_ids for block_id in group)
    _check_pool(kv.host.pool, host_counts)
    _check_pool(kv.host.disk.pool, Counter(kv.host.disk.held_slots))


def _check_pool(pool: BlockPool, counts: Counter[int]) -> None:
    free_ids = pool.free_block_ids
    free = set(free_ids)
    _require(len(free) == len(free_ids), "a block is free twice")
    for block_id, (ref_count, name) in enumerate(zip(pool.ref_counts, pool.names, strict=True)):
        expected = counts.get(block_id, 0)
        if ref_count != expected:
            raise InvariantError(f"block {block_id} counts {ref_count} references, {expected} are in tables and holds")
        if (ref_count == 0) != (block_id in free):
            raise InvariantError(f"block {block_id}: free if and only if unreferenced")
        if name is None and block_id in pool.evictor:
            raise InvariantError(f"block {block_id}: in the evictor without a name")
        if name is not None and pool.lookup(name) != block_id:
            raise InvariantError(f"block {block_id}: the index has {pool.lookup(name)} under its name")
    named = sum(name is not None for name in pool.names)
    _require(named == pool.num_named, "%s blocks carry a name, the index has %s", named, pool.num_named)
    used = sum(ref_count > 0 for ref_count in pool.ref_counts)
    _require(pool.num_free + used == pool.num_blocks, "%s free + %s used of %s", pool.num_free, used, pool.num_blocks)
    shared = sum(ref_count > 1 for ref_count in pool.ref_counts)
    _require(shared == pool.num_shared, "%s blocks are shared, the pool counts %s", shared, pool.num_shared)


def check_scheduler(scheduler: Scheduler, requests: Iterable[Request]) -> None:
    """Every unfinished request is in exactly one queue, its counts fit, and the pool agrees with all tables.

    ``requests``: all that were ever added, or at least those that have not ended or hold blocks.
    """
    tables, swapped = [], []
    running = set(scheduler.running)
    for request in requests:
        places = [
            request in running,
            request in scheduler.waiting,
            request in scheduler.prefix_waits,
            request in scheduler.population.families,
            request in scheduler.population.held_long,
        ]
        _require(sum(places) == (not request.is_finished), "%s: in %s queues", request, sum(places))
        _require(places[0] == (request.status is Status.RUNNING), "%s: running queue and status differ", request)
        if request.swapped is not None:
            _require(request.status is Status.PREEMPTED, "%s: swapped out and not in line", request)
            swapped.append(request.swapped)
        if request.tables is None:
            _require(request.status is not Status.RUNNING, "%s: runs without tables", request)
            continue
        tables.append(request.tables)
        _check_counts(request, scheduler.kv.config)
    ranks = [request.rank for request in scheduler.running]
    _require(ranks == sorted(set(ranks)), "running requests are not in order of rank")
    check_line(scheduler)
    num_free_of_pins = scheduler.kv.keeping.pins.num_unclaimed
    _require(scheduler.most_blocks_needed <= num_free_of_pins, f"pins leave {num_free_of_pins} blocks: too few")
    check_cache(scheduler.kv, tables, swapped)


def check_line(scheduler: Scheduler) -> None:
    """The line contradicts the rank nowhere where somebody would take turns for it: those that were preempted, and
    beams that the others of their search wait for, stand in order of rank. And nobody comes in rank between the beams
    of a search: who gave way to one would keep the next one waiting.

    Raises:
        InvariantError: names those in line.
    """
    line = [request for request in scheduler.waiting if _goes_by_rank(request)]
    _require(all(one.rank < other.rank for one, other in pairwise(line)), "%s: not in line in order of rank", line)
    ranked = sorted((each for each in scheduler.open_requests if each.rank != UNRANKED), key=lambda each: each.rank)
    searches = [request.group or request for request in ranked]
    runs = sum(one is not other for one, other in pairwise(searches)) + bool(searches)
    _require(runs == len(set(searches)), "somebody is in rank between the beams of a search")


def _goes_by_rank(request: Request) -> bool:
    is_awaited = request.group is not None and any(each.status is not Status.WAITING for each in request.group.members)
    return is_awaited or request.status is Status.PREEMPTED


def _check_counts(request: Request, config: CacheConfig) -> None:
    landed, computed, planned = request.num_landed_tokens, request.num_computed_tokens, request.num_planned_tokens
    _require(landed <= computed, "%s: more landed than computed", request)
    if request.is_finished:
        return
    _require(computed <= planned, "%s: computed past its %s tokens", request, planned)
    assert request.tables is not None
    capacity, block_size = request.tables.capacity, config.block_size
    for group, start in enumerate(request.tables.starts):
        _require(start <= config.first_block(group, landed), "%s: gave back what it needs in group %s", request, group)
    _require(computed <= request.tables.num_blocks * block_size, "%s: computed past its blocks", request)
    is_tail_shared = capacity == computed - computed % block_size  # since a fork: copied before more is written
    _require(computed <= capacity or is_tail_shared, "%s: computed past its capacity %s", request, capacity)
    _require(
        request.num_tokens <= request.max_total_tokens, "%s: past its %s tokens", request, request.max_total_tokens
    )
    is_idle = request.num_in_flight == 0
    _require(landed == computed or not is_idle, "%s: not in flight, against its counts", request)


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """The plan keeps its budget and writes only into blocks that one sequence alone holds, or shares with those that
    fork it in this very plan."""
    _require(0 < plan.num_tokens <= scheduler.config.max_num_batched_tokens, "step of %s tokens", plan.num_tokens)
    _require(len(set(plan.row_ids)) == len(plan.row_ids), "a row is planned twice")
    rows = {request.row_id: request for request in scheduler.running}
    held = Counter(scheduler.kv.held_blocks)
    owners = Counter([*plan.row_ids, *(fork.source for fork in plan.forks)])
    size = scheduler.kv.config.block_size
    for row_id, start, count in zip(plan.row_ids, plan.starts, plan.counts, strict=True):
        tables = rows[row_id].tables
        assert tables is not None
        for group in tables.groups if count else ():
            for block_id in group[start // size : (start + count - 1) // size + 1]:
                ref_count = scheduler.kv.pool.ref_counts[block_id] - held[block_id]
                _require(ref_count == owners[row_id], "block %s: written by row %s while shared", block_id, row_id)
    sources, targets = {copy.source for copy in plan.copies}, [copy.target for copy in plan.copies]
    _require(sources.isdisjoint(targets), "a block is source and target of copies")
    _require(len(set(targets)) == len(targets), "a block is the target of two copies")
