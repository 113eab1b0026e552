"""What every block should hold, told from the plans alone: the sanitizer's own record of the KV memory."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.core.hashing import BlockHasher, HashChain, group_suffix
from octavo.core.kv_fault import KVFault, KVFaultError
from octavo.core.kv_types import CacheConfig
from octavo.core.step import NO_BLOCK, BlockCopy, DiskMoves, NewRow, StepPlan, StepResult, TableWrite

PENDING = -1
"""A token that a step in flight draws."""


class Record:
    """Contents of a block: ``tokens``, computed after what the hash ``parent`` stands for, as the keys and values of
    layer group ``group``.

    ``name``: what the prefix cache calls them once the block is full of known tokens, else empty. ``tail_name``: the
    same of the first ``tail_length`` of them, where the cache was seen to call them so.
    """

    __slots__ = ("group", "name", "parent", "tail_length", "tail_name", "tokens")

    def __init__(self, group: int = -1, parent: bytes = b"", tokens: Iterable[int] = (), name: bytes = b"") -> None:
        self.group = group
        self.parent = parent
        self.tokens = list(tokens)
        self.name = name
        self.tail_name = b""
        self.tail_length = 0

    def copy(self) -> "Record":
        return Record(self.group, self.parent, self.tokens, self.name)

    def truncate(self, length: int) -> None:
        """Nothing is known of what stands after the first ``length`` tokens."""
        del self.tokens[length:]
        self.name = b""
        if length < self.tail_length:
            self.tail_name, self.tail_length = b"", 0


class OpenHead(NamedTuple):
    """The first ``num_tokens`` tokens of a block are as well what follows ``parent`` (see HashChain)."""

    parent: bytes
    num_tokens: int


class ShadowRow:
    """A row as the runner knows it. ``chain``: names of its full blocks, ``names[g]`` those of layer group g; ``end``:
    positions that plans have computed so far, None before the first of them; ``num_planned``: tokens that are known or
    on their way."""

    __slots__ = ("chain", "end", "names", "num_planned", "tables", "tokens")

    def __init__(self, new: NewRow, chain: HashChain) -> None:
        self.tokens = list(new.token_ids)
        self.tables = [list(block_ids) for block_ids in new.block_ids]
        self.chain = chain
        self.names: list[list[bytes]] = [chain.hashes] + [[] for _ in self.tables[1:]]
        self.end: int | None = None
        self.num_planned = len(self.tokens)

    def parents(self, index: int) -> tuple[bytes, bytes | None]:
        """What logical block ``index`` follows, and what it would follow if it were open to all."""
        return self.chain.parents[index], self.chain.open_parent(index)


@dataclass(slots=True)
class _Effects:
    """What a plan in flight writes: to be forgotten if it fails. ``written``: records, and how much of them stood
    before."""

    plan: StepPlan
    written: list[tuple[Record, int]] = field(default_factory=list)


class Shadow:
    """Follows plans in the order of their issue. At most two are in flight (design, Decided 1), so that all tokens
    before a sequence's last are known.

    ``owners[b]``: entries of block b in the tables of all rows.
    """

    def __init__(self, cache: CacheConfig, hasher: BlockHasher) -> None:
        self.records = [Record() for _ in range(cache.num_blocks)]
        self.host_records = [Record() for _ in range(cache.num_host_blocks)]
        self.rows: dict[int, ShadowRow] = {}
        self.owners = [0] * cache.num_blocks
        self._hasher = hasher
        self._size = cache.block_size
        self._cache = cache
        # By what a block follows within its salt: the most that a sequence has declared open, whoever computed it.
        self._open_heads: dict[bytes, OpenHead] = {}
        self._in_flight: deque[_Effects] = deque()

    # A plan, in the order in which it is carried out

    def move(self, plan: StepPlan, dropped_on_host: Iterable[int]) -> None:
        """Contents move between blocks, and some are dropped. ``dropped_on_host``: blocks of the host pool whose
        contents are, unless the plan takes them to disk first."""
        self._in_flight.append(_Effects(plan))
        _check_disk_writes(plan.disk, self.records, self.host_records)
        drop(self.host_records, dropped_on_host)
        for source, target in plan.swap_outs:
            self.host_records[target] = self.records[source].copy()
        drop(self.records, plan.poisons)
        for source, target in plan.swap_ins:
            self.records[target] = self.host_records[source].copy()
        for read in plan.disk.reads:
            self.records[read.block_id] = Record(name=read.name)
        self._copy(plan.copies)

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        read = [self.records[source].copy() for source, _ in copies]
        for (_, target), record in zip(copies, read, strict=True):
            self.records[target] = record

    def add_row(self, new: NewRow, chain: HashChain) -> None:
        """``chain``: that of the sequence, without hashes."""
        row = self.rows[new.row_id] = ShadowRow(new, chain)
        self._name_blocks(row, len(row.tokens))
        self._note_open_head(chain)
        for group, table in enumerate(row.tables):
            for block_id in table:
                self._own(block_id, new.row_id, group)

    def write_table(self, write: TableWrite) -> None:
        row_id, group, index, block_id = write
        table = self.row(row_id).tables[group]
        if index > len(table):
            raise KVFaultError(KVFault.WRONG_TABLE, f"entry {index} of row {row_id} comes before entry {len(table)}")
        if index == len(table):
            table.append(block_id)
        else:
            self._disown(table[index])
            table[index] = block_id
        self._own(block_id, row_id, group)

    def release(self, row_id: int) -> None:
        for table in self.row(row_id).tables:
            for block_id in table:
                self._disown(block_id)
        del self.rows[row_id]

    def compute(self, row: ShadowRow, start: int, count: int, samples: bool, drafts: Sequence[int] = ()) -> None:
        """A row writes ``count`` positions from ``start`` on, of which the last are those of ``drafts``, or of a
        pending token, and draws one more or not."""
        end = row.end = start + count
        row.num_planned += samples
        row.tokens += drafts
        row.tokens += [PENDING] * (end - len(row.tokens))
        for index in range(start // self._size, -(-end // self._size)) if count else ():
            positions = range(max(start, index * self._size), min(end, (index + 1) * self._size))
            for group in range(len(row.tables)):
                self._write(row, group, index, positions)

    def _write(self, row: ShadowRow, group: int, index: int, positions: range) -> None:
        """Positions of logical block ``index``, of which those before are there."""
        block_id, offset = row.tables[group][index], positions.start % self._size
        if offset == 0:
            self.records[block_id] = Record(group)
        record = self.records[block_id]
        self._in_flight[-1].written.append((record, offset))
        record.truncate(offset)
        if index < len(row.chain.parents):  # else it follows drafts, and nobody knows what
            record.parent = row.chain.parents[index]
        record.tokens += row.tokens[positions.start : positions.stop]
        if len(record.tokens) == self._size and index < len(row.names[group]):
            record.name = row.names[group][index]

    def claim(self, row: ShadowRow, group: int, index: int) -> None:
        """A full block was seen to hold logical block ``index`` of a row, whatever it was called before."""
        record = self.records[row.tables[group][index]]
        record.parent, record.group, record.name = row.chain.parents[index], group, row.names[group][index]
        record.tokens = row.tokens[index * self._size : (index + 1) * self._size]

    # Landing

    def land(self, result: StepResult) -> None:
        """The oldest plan in flight has landed: the tokens that it drew are known."""
        plan = self._in_flight.popleft().plan
        drawn, drafts = iter(result.token_ids), dict(plan.drafts)
        for row_id, start, count, samples in zip(plan.row_ids, plan.starts, plan.counts, plan.samples, strict=True):
            if not samples:
                continue
            token_id = next(drawn)
            row = self.rows.get(row_id)
            if row is None:
                continue
            if row_id in drafts:
                self._settle_drafts(row, range(start, start + count), [token_id, *result.further.get(row_id, ())])
            else:
                self._settle(row, start + count, token_id)

    def _settle_drafts(self, row: ShadowRow, computed: range, drawn: Sequence[int]) -> None:
        """Which of the positions that were computed held what belongs there is known: one for each token that was drawn
        after it. The others hold nothing."""
        end = row.end = computed.start + len(drawn)
        for index in range(end // self._size, -(-computed.stop // self._size)):
            for table in row.tables:
                self.records[table[index]].truncate(max(0, end - index * self._size))
        del row.tokens[end:]
        row.num_planned += len(drawn) - 1
        for position, token_id in enumerate(drawn, computed.start + 1):
            self._settle(row, position, token_id)
        for index in range(computed.start // self._size, -(-end // self._size)):
            for table in row.tables:
                self.records[table[index]].parent = row.chain.parents[index]

    def _settle(self, row: ShadowRow, position: int, token_id: int) -> None:
        """Token ``position`` of a row is known; a plan in flight may compute it already."""
        index, offset = divmod(position, self._size)
        is_computed = position < len(row.tokens)
        if is_computed:
            row.tokens[position] = token_id
        else:
            row.tokens.append(token_id)
        if offset == self._size - 1:
            self._name_blocks(row, position + 1)
        for group, table in enumerate(row.tables) if is_computed else ():
            record = self.records[table[index]]
            record.tokens[offset] = token_id
            if offset == self._size - 1:
                record.name = row.names[group][index]

    def roll_back(self) -> None:
        """The steps in flight have failed, and the runner knows no row any more: nobody can tell how much of what they
        were to write was written."""
        for effects in reversed(self._in_flight):
            for record, length in effects.written:
                record.truncate(length)
            plan = effects.plan
            drop(self.host_records, (target for _, target in plan.swap_outs))
            drop(self.records, (target for _, target in (*plan.swap_ins, *plan.copies)))
            drop(self.records, (read.block_id for read in plan.disk.reads))
        self._in_flight.clear()
        self.rows.clear()
        self.owners = [0] * len(self.owners)

    def row(self, row_id: int) -> ShadowRow:
        row = self.rows.get(row_id)
        if row is None:
            raise KVFaultError(KVFault.WRONG_TABLE, f"row {row_id} has no table: the runner does not know it")
        return row

    def follows(self, record: Record, parents: tuple[bytes, bytes | None], length: int) -> bool:
        """Do the first ``length`` tokens stand after one of ``parents``, those that a sequence has and what it may read
        from all others?"""
        if record.parent in parents:
            return True
        head = self._open_heads.get(record.parent)
        return head is not None and head.parent in parents and length <= head.num_tokens

    def _note_open_head(self, chain: HashChain) -> None:
        parent = chain.open_parent(chain.salted_at)
        if parent is None or not chain.num_open_in_block:
            return
        salted = chain.parents[chain.salted_at]
        known = self._open_heads.get(salted, OpenHead(parent, 0))
        self._open_heads[salted] = OpenHead(parent, max(known.num_tokens, chain.num_open_in_block))
        if len(self._open_heads) > 2 * (len(self.records) + len(self.host_records)):
            used = {record.parent for record in (*self.records, *self.host_records)}
            used |= {parent for row in self.rows.values() for parent in row.chain.parents}
            self._open_heads = {salted: head for salted, head in self._open_heads.items() if salted in used}

    def first_needed(self, group: int, start: int) -> int:
        """The first logical block that a row at position ``start`` reads."""
        return self._cache.first_block(group, start)

    def _own(self, block_id: int, row_id: int, group: int) -> None:
        if block_id == NO_BLOCK and self._cache.window(group) is not None:
            return
        if not 0 <= block_id < len(self.owners):
            raise KVFaultError(KVFault.WRONG_TABLE, f"row {row_id} names block {block_id} of {len(self.owners)}")
        self.owners[block_id] += 1

    def _disown(self, block_id: int) -> None:
        if block_id != NO_BLOCK:
            self.owners[block_id] -= 1

    def _name_blocks(self, row: ShadowRow, num_tokens: int) -> None:
        self._hasher.extend(row.chain, row.tokens, num_tokens)
        for group, names in enumerate(row.names[1:], 1):
            names += [block_hash + group_suffix(group) for block_hash in row.chain.hashes[len(names) :]]


def drop(records: list[Record], block_ids: Iterable[int]) -> None:
    """Nobody may expect anything of these blocks any more."""
    for block_id in block_ids:
        records[block_id] = Record()


def _check_disk_writes(moves: DiskMoves, device: Sequence[Record], host: Sequence[Record]) -> None:
    """What goes to disk has the name by which it will be found there. (What is read is held to it by a checksum.)"""
    for write in moves.writes:
        if (host if write.on_host else device)[write.block_id].name != write.name:
            where = "of the host pool " if write.on_host else ""
            raise KVFaultError(
                KVFault.STALE_HASH, f"block {write.block_id} {where}goes to disk under a name that is not its contents'"
            )
