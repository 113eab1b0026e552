"""The KV sanitizer: for paged memory what an address sanitizer is for C.

It stands between the scheduler and the runner and holds every plan, before it is carried out, against a shadow that
knows nothing but the plans before it (and against the pool's counts and names). A wrong block table would still give
fluent text, from the wrong context; here it ends the run, with one sentence that names the fault. Costs time: off by
default.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress, zip_longest
from operator import gt, is_not

from octavo.core.hashing import group_suffix, pack_tokens
from octavo.core.invariants import check_plan, check_scheduler
from octavo.core.kv_fault import KVFault, KVFaultError
from octavo.core.pool import BlockPool
from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.core.shadow import Record, Shadow, ShadowRow
from octavo.core.step import NO_BLOCK, PendingStep, Runner, StepPlan, StepResult

CHECK_INTERVAL = 16
"""All names and all invariants of the core are checked with every so many plans."""


@dataclass(slots=True)
class _WatchedPool:
    """``names``: what the prefix cache called the pool's blocks when the last plan was checked."""

    pool: BlockPool
    records: Sequence[Record]
    what: str
    names: list[bytes | None] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [None] * self.pool.num_blocks


class KVSanitizer:
    """A ``Runner`` that checks plans and passes them on to ``runner``. Makes ``scheduler`` put into its plans which
    blocks to poison, so it has to be there before the first plan.

    Raises:
        KVFaultError: by ``submit``, before the runner sees the plan. Not by the step's result: the engine tries steps
            that fail again, but after this no answer can be trusted, so the engine has to end.
        InvariantError: the same, where the bookkeeping contradicts itself.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        assert scheduler.config.max_steps_in_flight <= 2, "the shadow knows all tokens but a sequence's last"
        self._runner = runner
        self._scheduler = scheduler
        self._kv = scheduler.kv
        self._size = scheduler.kv.config.block_size
        self._shadow = Shadow(scheduler.kv.config, scheduler.kv.hasher)
        self._num_plans = 0
        self._held: Counter[int] = Counter()
        self._watched = _WatchedPool(self._kv.pool, self._shadow.records, "block")
        self._watched_host = _WatchedPool(self._kv.host.pool, self._shadow.host_records, "block of the host pool")
        for watched in (self._watched, self._watched_host):
            watched.pool.note_dropped()

    def submit(self, plan: StepPlan) -> PendingStep:
        requests = {request.row_id: request for request in self._scheduler.running}
        dropped_on_host = self._kv.host.pool.take_dropped()
        self._shadow.move(plan, dropped_on_host)
        self._change_rows(plan, requests)
        self._check_tables(plan, requests)
        self._check_references(plan)
        moved = (target for _, target in (*plan.swap_ins, *plan.copies))
        self._check_names(self._watched, (*plan.poisons, *moved))
        self._check_names(self._watched_host, (*dropped_on_host, *(target for _, target in plan.swap_outs)))
        self._check_rows(plan)
        if self._num_plans % CHECK_INTERVAL == 0:
            check_scheduler(self._scheduler, self._scheduler.open_requests)
            if plan.row_ids:
                check_plan(self._scheduler, plan)
        self._num_plans += 1
        return _SanitizedStep(self._runner.submit(plan), self._shadow)

    def reset(self) -> None:
        self._runner.reset()
        self._shadow.roll_back()
        for watched in (self._watched, self._watched_host):
            watched.names = [None] * watched.pool.num_blocks  # look at all of them again

    def close(self) -> None:
        self._runner.close()

    def _change_rows(self, plan: StepPlan, requests: dict[int, Request]) -> None:
        for new in plan.new_rows:
            self._shadow.add_row(new, requests[new.row_id].chain.without_hashes())
        for write in plan.table_writes:
            self._shadow.write_table(write)
        for row_id in plan.released_rows:  # these compute nothing any more, and their blocks may be others' already
            self._shadow.release(row_id)

    # The pool

    def _check_references(self, plan: StepPlan) -> None:
        """The pool counts at least one reference for each table that names a block."""
        owners, ref_counts = self._shadow.owners, self._kv.pool.ref_counts
        if not any(map(gt, owners, ref_counts)):
            return
        block_id = next(block_id for block_id, count in enumerate(owners) if count > ref_counts[block_id])
        starts = dict(zip(plan.row_ids, plan.starts, strict=True))
        starts |= {
            fork.row_id: starts[fork.source] for fork in plan.forks
        }  # what its source writes is a fork's as well
        fresh: list[int] = []
        used: list[int] = []
        for row_id, row in self._shadow.rows.items():
            end = starts.get(row_id, row.end or 0)
            for table in row.tables:
                for index, other in enumerate(table):
                    if other == block_id:
                        (fresh if index * self._size >= end else used).append(row_id)
        if fresh and used:
            raise KVFaultError(
                KVFault.PREMATURE_REUSE,
                f"block {block_id} was given to row {fresh[0]} while row {used[0]} still has it",
            )
        raise KVFaultError(
            KVFault.LOST_REFERENCE,
            f"block {block_id} is in {owners[block_id]} tables (rows {_listed(fresh + used)}), but the pool counts "
            f"{ref_counts[block_id]} references",
        )

    def _check_names(self, watched: "_WatchedPool", touched: Iterable[int]) -> None:
        """Blocks whose names are new, or whose contents were moved or dropped (``touched``), hold what their names say;
        now and then, all do."""
        names, records = watched.pool.names, watched.records
        changed: Iterable[int] = range(len(names))
        if self._num_plans % CHECK_INTERVAL:
            changed = [*compress(range(len(names)), map(is_not, names, watched.names)), *touched]
        watched.names = names.copy()
        for block_id in changed:
            name, record = names[block_id], records[block_id]
            if name is None or name in (record.name, record.tail_name) or self._is_tail(name, record):
                continue
            raise KVFaultError(
                KVFault.STALE_HASH,
                f"the prefix cache has {watched.what} {block_id} under a name that its contents do not have",
            )

    def _is_tail(self, name: bytes, record: Record) -> bool:
        """Is this the name of the first tokens of a block? It is noted if so."""
        suffix = group_suffix(max(record.group, 0))
        for length in range(1, len(record.tokens) + 1):
            known = record.tokens[:length]
            if min(known) >= 0 and self._kv.hasher.hash_tail(record.parent, pack_tokens(known)) + suffix == name:
                record.tail_name, record.tail_length = name, length
                return True
        return False

    # The rows

    def _check_tables(self, plan: StepPlan, requests: dict[int, Request]) -> None:
        """Each row goes on where it stood, and its table is its sequence's."""
        drafts = dict(plan.drafts)
        for row_id, start, count in zip(plan.row_ids, plan.starts, plan.counts, strict=True):
            row = self._shadow.row(row_id)
            num_known = row.num_planned + len(drafts.get(row_id, ()))
            if row.end not in (None, start) or start + count > num_known:
                raise KVFaultError(
                    KVFault.POSITION_GAP,
                    f"row {row_id}, with {row.end} of {num_known} tokens computed, goes on with {count} from "
                    f"position {start}",
                )
            _check_table(row_id, row, requests[row_id], -(-(start + count) // self._size))

    def _check_rows(self, plan: StepPlan) -> None:
        """Row by row, in the order in which one may read what another writes in this step: a fork stands after its
        source."""
        num_forks, drafts = Counter(fork.source for fork in plan.forks), dict(plan.drafts)
        self._held = Counter(self._kv.held_blocks)
        for row_id, start, count, samples in zip(plan.row_ids, plan.starts, plan.counts, plan.samples, strict=True):
            row = self._shadow.rows[row_id]
            self._check_read(row_id, row, start)
            for index in range(start // self._size, -(-(start + count) // self._size)) if count else ():
                for table in row.tables:
                    self._check_written(row_id, table[index], max(0, start - index * self._size), 1 + num_forks[row_id])
            self._shadow.compute(row, start, count, samples, drafts.get(row_id, ()))

    def _check_read(self, row_id: int, row: ShadowRow, num_tokens: int) -> None:
        """The first ``num_tokens`` positions of a row, as far as the next one sees them, hold its own tokens."""
        records, num_named = self._shadow.records, min(num_tokens // self._size, len(row.chain.hashes))
        for group, table in enumerate(row.tables):
            first = self._shadow.first_needed(group, num_tokens)
            if self._kv.config.window(group) is not None:
                self._check_is_there(row_id, table[first:], group)
            names = row.names[group][first:num_named]
            found = [records[block_id].name for block_id in table[first:num_named]]
            if found != names:
                for index in range(first, num_named):
                    if found[index - first] != names[index - first]:
                        self._check_block(row_id, group, index, self._size)
                        self._shadow.claim(row, group, index)
            if row.end is None:  # blocks that came from disk are known by name alone
                for index in range(first, num_named):
                    if not records[table[index]].tokens:
                        self._shadow.claim(row, group, index)
            for index in range(max(first, num_named), -(-num_tokens // self._size)):
                self._check_block(row_id, group, index, min(self._size, num_tokens - index * self._size))

    def _check_is_there(self, row_id: int, needed: Sequence[int], group: int) -> None:
        if NO_BLOCK in needed:
            raise KVFaultError(
                KVFault.MISSING_CONTENTS,
                f"row {row_id} has given back a block that it still sees in layer group {group}",
            )

    def _check_block(self, row_id: int, group: int, index: int, length: int) -> None:
        """The first ``length`` tokens of a logical block are those of the row, after the right ones."""
        row = self._shadow.rows[row_id]
        block_id = row.tables[group][index]
        record, tokens = self._shadow.records[block_id], row.tokens[index * self._size : index * self._size + length]
        is_right = record.group == group and self._shadow.follows(record, row.parents(index), length)
        if is_right and record.tokens[:length] == tokens:
            return
        where = f"positions {index * self._size} to {index * self._size + length - 1} in block {block_id}"
        name = row.names[group][index] if index < len(row.names[group]) else b""
        if self._kv.pool.lookup(name) == block_id:
            raise KVFaultError(
                KVFault.STALE_HASH, f"row {row_id} finds {where} by a name that its contents do not have"
            )
        if len(record.tokens) < length and (is_right or not record.tokens):
            raise KVFaultError(
                KVFault.MISSING_CONTENTS, f"row {row_id} reads {where}, which holds {len(record.tokens)} tokens"
            )
        raise KVFaultError(KVFault.WRONG_CONTENTS, f"row {row_id} reads {where}, where it finds those of another place")

    def _check_written(self, row_id: int, block_id: int, offset: int, num_owners: int) -> None:
        """A block that is written, from ``offset`` on, belongs to ``num_owners`` tables (those of the row and of what
        forks it in this very step), and the prefix cache knows at most what stands before."""
        num_references = self._kv.pool.ref_counts[block_id] - self._held[block_id]
        num_sharers = max(self._shadow.owners[block_id], num_references)
        if num_sharers > num_owners:
            raise KVFaultError(
                KVFault.SHARED_WRITE,
                f"row {row_id} writes into block {block_id}, which {num_sharers} tables share, instead of a copy",
            )
        name, record = self._kv.pool.names[block_id], self._shadow.records[block_id]
        if name is not None and (name != record.tail_name or offset < record.tail_length):
            raise KVFaultError(
                KVFault.STALE_HASH, f"row {row_id} writes over contents of block {block_id} that the prefix cache names"
            )


def _check_table(row_id: int, row: ShadowRow, request: Request, num_blocks: int) -> None:
    """The runner's tables of a sequence are the sequence's, and long enough for the positions of this step."""
    assert request.tables is not None
    for group, (table, expected) in enumerate(zip(row.tables, request.tables.groups, strict=True)):
        if table != expected:
            pairs = enumerate(zip_longest(table, expected))
            index, (found, right) = next((index, pair) for index, pair in pairs if pair[0] != pair[1])
            raise KVFaultError(
                KVFault.WRONG_TABLE,
                f"entry {index} of row {row_id} in layer group {group} is {found} to the runner, but should be {right}",
            )
        if len(table) < num_blocks:
            raise KVFaultError(
                KVFault.WRONG_TABLE, f"row {row_id} needs {num_blocks} blocks in this step, its table has {len(table)}"
            )


def _listed(row_ids: Iterable[int]) -> str:
    return ", ".join(map(str, row_ids)) or "none"


@dataclass(frozen=True, slots=True)
class _SanitizedStep:
    """A step on its way, of whose tokens the shadow is told."""

    step: PendingStep
    shadow: Shadow

    def result(self) -> StepResult:
        result = self.step.result()
        self.shadow.land(result)
        return result
