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
    for block in pool.blocks:
        expected = counts[block.block_id]
        _require(block.ref_count == expected, f"{block}: {expected} references are in tables and holds")
        _require((block.ref_count == 0) == (block.block_id in free), f"{block}: free if and only if unreferenced")
        if block.hash is None:
            _require(block.block_id not in pool.evictor, f"{block}: in the evictor without a hash")
        else:
            found = pool.lookup(block.group, block.hash)
            _require(found == block.block_id, f"{block}: the index has {found} for its hash")
    hashed = sum(block.hash is not None for block in pool.blocks)
    _require(hashed == pool.num_hashed, f"{hashed} blocks carry a hash, the index has {pool.num_hashed}")
    used = sum(block.ref_count > 0 for block in pool.blocks)
    _require(pool.num_free + used == pool.num_blocks, f"{pool.num_free} free + {used} used of {pool.num_blocks}")
    shared = sum(block.ref_count > 1 for block in pool.blocks)
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
    _require((landed == computed) == (request.num_in_flight == 0), f"{request}: in flight, or not, against its counts")


def check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    """The plan keeps its budget and writes only into blocks that one sequence alone holds."""
    _require(0 < plan.num_tokens <= scheduler.config.max_num_batched_tokens, f"step of {plan.num_tokens} tokens")
    _require(len(set(plan.row_ids)) == len(plan.row_ids), "a row is planned twice")
    rows = {request.row_id: request for request in scheduler.running}
    size = scheduler.kv.config.block_size
    for row_id, start, count in zip(plan.row_ids, plan.starts, plan.counts, strict=True):
        tables = rows[row_id].tables
        assert tables is not None
        for group in tables.groups:
            for block_id in group[start // size : (start + count - 1) // size + 1]:
                block = scheduler.kv.pool.blocks[block_id]
                _require(block.ref_count == 1, f"{block}: written by row {row_id} while shared")
    sources = {copy.source for copy in plan.copies}
    _require(sources.isdisjoint(copy.target for copy in plan.copies), "a block is source and target of copies")
