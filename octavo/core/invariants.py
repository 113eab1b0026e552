"""What must always hold between pool, tables and queues; checked by tests, by the simulator and in sanitizer mode."""

from collections import Counter
from collections.abc import Iterable

from octavo.core.kv_manager import KVCacheManager
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler
from octavo.core.step import StepPlan
from octavo.core.table import BlockTables


class InvariantError(AssertionError):
    """The bookkeeping contradicts itself: a fault in Octavo."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)


def check_pool(kv: KVCacheManager, tables: Iterable[BlockTables]) -> None:
    """Reference counts equal occurrences; free, cached and used blocks add up; hash index and blocks agree.

    Raises:
        InvariantError: says which block and how.
    """
    pool = kv.pool
    counts = Counter(kv.held_blocks)
    for table in tables:
        for group in table.groups:
            _require(len(set(group)) == len(group), "a table holds a block twice")
            _require(len(group) == table.num_blocks, "tables of one sequence differ in length")
            counts.update(group)
    free_ids = pool.free_block_ids
    free = set(free_ids)
    _require(len(free) == len(free_ids), "a block is free twice")
    for block_id, (ref_count, name) in enumerate(zip(pool.ref_counts, pool.names, strict=True)):
        block = f"block {block_id}"
        expected = counts[block_id]
        _require(ref_count == expected, f"{block} counts {ref_count} references, {expected} are in tables and holds")
        _require((ref_count == 0) == (block_id in free), f"{block}: free if and only if unreferenced")
        if name is None:
            _require(block_id not in pool.evictor, f"{block}: in the evictor without a name")
        else:
            found = pool.lookup(name)
            _require(found == block_id, f"{block}: the index has {found} under its name")
    named = sum(name is not None for name in pool.names)
    _require(named == pool.num_named, f"{named} blocks carry a name, the index has {pool.num_named}")
    used = sum(ref_count > 0 for ref_count in pool.ref_counts)
    _require(pool.num_free + used == pool.num_blocks, f"{pool.num_free} free + {used} used of {pool.num_blocks}")
    shared = sum(ref_count > 1 for ref_count in pool.ref_counts)
    _require(shared == pool.num_shared, f"{shared} blocks are shared, the pool counts {pool.num_shared}")


def check_scheduler(scheduler: Scheduler, requests: Iterable[Request]) -> None:
    """Every unfinished request is in exactly one queue, its counts fit, and the pool agrees with all tables.

    ``requests``: all that were ever added, or at least those that have not ended or hold blocks.
    """
    tables = []
    for request in requests:
        places = [
            request in scheduler.running,
            request in scheduler.waiting,
            request in scheduler.prefix_waits,
            request in scheduler.population.families,
        ]
        _require(sum(places) == (not request.is_finished), f"{request}: in {sum(places)} queues")
        _require(places[0] == (request.status is Status.RUNNING), f"{request}: running queue and status differ")
        if request.tables is None:
            _require(request.status is not Status.RUNNING, f"{request}: runs without tables")
            continue
        tables.append(request.tables)
        _check_counts(request)
    orders = [request.order for request in scheduler.running]
    _require(orders == sorted(orders), "running requests are not in order of age")
    check_pool(scheduler.kv, tables)


def _check_counts(request: Request) -> None:
    landed, computed, planned = request.num_landed_tokens, request.num_computed_tokens, request.num_planned_tokens
    _require(landed <= computed, f"{request}: more landed than computed")
    if request.is_finished:
        return
    _require(computed <= planned, f"{request}: computed past its {planned} tokens")
    assert request.tables is not None
    _require(computed <= request.tables.capacity, f"{request}: computed past its capacity {request.tables.capacity}")
    _require(request.num_tokens <= request.max_total_tokens, f"{request}: past its {request.max_total_tokens} tokens")
    is_idle = request.num_in_flight == 0
    _require(landed == computed or not is_idle, f"{request}: not in flight, against its counts")


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """The plan keeps its budget and writes only into blocks that one sequence alone holds."""
    _require(0 < plan.num_tokens <= scheduler.config.max_num_batched_tokens, f"step of {plan.num_tokens} tokens")
    _require(len(set(plan.row_ids)) == len(plan.row_ids), "a row is planned twice")
    rows = {request.row_id: request for request in scheduler.running}
    size = scheduler.kv.config.block_size
    for row_id, start, count in zip(plan.row_ids, plan.starts, plan.counts, strict=True):
        tables = rows[row_id].tables
        assert tables is not None
        for group in tables.groups if count else ():
            for block_id in group[start // size : (start + count - 1) // size + 1]:
                ref_count = scheduler.kv.pool.ref_counts[block_id]
                _require(ref_count == 1, f"block {block_id}: written by row {row_id} while shared")
    sources = {copy.source for copy in plan.copies}
    _require(sources.isdisjoint(copy.target for copy in plan.copies), "a block is source and target of copies")
