"""A runner without a model: its KV memory holds the tokens themselves, so that a wrong block table is seen at once."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate
from random import Random

from octavo.core.step import NO_BLOCK, BlockCopy, NewRow, RowFault, StepPlan, StepResult, TokenLogprobs
from tests.support.fake_disk import FakeDisk, Memory
from tests.support.naive_beam_search import Search, naive_beam_search

VOCAB_SIZE = 1000
FREQUENT_EOS = frozenset([0])
"""An id that is often among the best, so that beam searches meet it at any length."""


def next_token(context: Sequence[int], choice: int = 0) -> int:
    """The fake model: any foreign or missing token in the context changes the answer, and so does the choice."""
    digest = blake2b(repr(list(context)).encode(), digest_size=4, salt=choice.to_bytes(2)).digest()
    return int.from_bytes(digest) % VOCAB_SIZE


def next_candidates(context: Sequence[int], count: int, choice: int = 0) -> tuple[tuple[int, float], ...]:
    """The best tokens after a context and their logprobs: the first is what ``next_token`` says."""
    rng = Random(blake2b(repr(list(context)).encode(), person=b"logprobs").digest())
    first = next_token(context, choice)
    others = [(first + 7 * rank) % VOCAB_SIZE or VOCAB_SIZE - 1 for rank in range(1, count)]
    if others and first and rng.random() < 0.2:
        (others[0],) = FREQUENT_EOS
    widest = 0.2 if rng.random() < 0.1 else 8.0  # where all are near, one beam forks into many; else all go on
    falls = accumulate((rng.uniform(0.01, widest) for _ in others), initial=rng.uniform(0.01, 0.2))
    return tuple(zip((first, *others), (-fall for fall in falls), strict=True))


def expected_output(
    prompt: Sequence[int], max_tokens: int, stop_ids: frozenset[int] = frozenset(), choice: int = 0
) -> list[int]:
    """What the fake model generates for a request alone."""
    return _generated(tuple(prompt), max_tokens, stop_ids, choice)[:]


@lru_cache(maxsize=1024)
def _generated(prompt: tuple[int, ...], max_tokens: int, stop_ids: frozenset[int], choice: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens, choice))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


def expected_beams(prompt: Sequence[int], search: Search) -> list[list[int]]:
    """What a beam search with the fake model finds, best first."""
    return [list(token_ids) for token_ids in _found(tuple(prompt), search)]


@lru_cache
def _found(prompt: tuple[int, ...], search: Search) -> list[tuple[int, ...]]:
    count = search.num_looked_at
    found = naive_beam_search(lambda output: next_candidates([*prompt, *output], count), search)
    return [result.token_ids for result in found]


@dataclass
class _Row:
    tokens: list[int]
    tables: list[list[int]]
    num_logprobs: int
    choice: int
    """What the draw depends on besides the context: nothing at temperature 0."""
    last_sample: int | None = None


@dataclass
class _Draws:
    """What a step has drawn: see StepResult."""

    first: list[int] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    further: dict[int, list[int]] = field(default_factory=dict)
    further_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


@dataclass
class _Pending:
    run: Callable[[], StepResult]

    def result(self) -> StepResult:
        return self.run()


@dataclass
class FakeRunner:
    """Steps are carried out when their result is asked for, in order of submission; ``fails`` may raise; a row for
    which ``faults`` is true has no token to draw; one whose tokens ``completes`` is done. Of a layer group with a
    window (``windows``: see CacheConfig) a row reads what it sees; what lies before is taken from the row's own tokens,
    where no group sees all."""

    block_size: int
    num_groups: int = 1
    windows: tuple[int | None, ...] = ()
    fails: Callable[[StepPlan], None] = lambda plan: None
    faults: Callable[[int], bool] = lambda row_id: False
    completes: Callable[[list[int]], bool] = lambda tokens: False
    plans: list[StepPlan] = field(default_factory=list)
    rows: dict[int, _Row] = field(default_factory=dict)
    memories: list[Memory] = field(default_factory=list)
    host_memories: list[Memory] = field(default_factory=list)
    disk: FakeDisk = field(default_factory=FakeDisk)
    _queue: deque[StepPlan] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.memories = [{} for _ in range(self.num_groups)]
        self.host_memories = [{} for _ in range(self.num_groups)]

    def submit(self, plan: StepPlan) -> _Pending:
        self.plans.append(plan)
        self._queue.append(plan)
        return _Pending(self._carry_out)

    def reset(self) -> None:
        self.rows.clear()
        self._queue.clear()

    def close(self) -> None:
        """There is no file."""

    def _carry_out(self) -> StepResult:
        plan = self._queue.popleft()
        self.disk.write(plan.disk, self.memories, self.host_memories, self.block_size)
        for memory, host in zip(self.memories, self.host_memories, strict=True):
            self._move(memory, host, plan.swap_outs)
            for block in plan.poisons:
                for slot in range(block * self.block_size, (block + 1) * self.block_size):
                    memory.pop(slot, None)
            self._move(host, memory, plan.swap_ins)
        self.disk.read(plan.disk, self.memories, self.block_size)
        for memory in self.memories:
            self._move(memory, memory, plan.copies)
        for new in plan.new_rows:
            self._add_row(new)
        for write in plan.table_writes:
            table = self.rows[write.row_id].tables[write.group]
            table.extend([-1] * (write.logical_block + 1 - len(table)))
            table[write.logical_block] = write.block_id
        self.fails(plan)
        self._check_forks(plan)
        draws, drafts = _Draws(), dict(plan.drafts)
        scheduled = zip(plan.row_ids, plan.starts, plan.counts, plan.samples, strict=True)
        computed = [(row_id, self._compute(self.rows[row_id], start, count, drafts.get(row_id, ())), samples)
                    for row_id, start, count, samples in scheduled]  # fmt: skip
        for row_id, end, samples in computed:
            if samples:
                self._draw(row_id, end, drafts.get(row_id, ()), draws)
        completed = frozenset(row_id for row_id, _, samples in computed if samples and self._is_complete(row_id))
        for row_id in plan.released_rows:
            del self.rows[row_id]
        faults = {row_id: RowFault("stuck", False) for row_id in plan.row_ids if self.faults(row_id)}
        return StepResult(
            plan.step_id,
            tuple(draws.first),
            logprobs=draws.logprobs,
            faults=faults,
            further=draws.further,
            further_logprobs=draws.further_logprobs,
            completed=completed,
        )

    def _is_complete(self, row_id: int) -> bool:
        row = self.rows[row_id]
        assert row.last_sample is not None
        return self.completes([*row.tokens, row.last_sample])

    def _draw(self, row_id: int, end: int, drafts: Sequence[int], draws: _Draws) -> None:
        """The token after the first ``end``, and after each draft while it is the one that was drawn."""
        row = self.rows[row_id]
        token_id, entry = self._draw_after(row, end)
        draws.first.append(token_id)
        if entry is not None:
            draws.logprobs[row_id] = entry
        for draft in drafts:
            if draft != token_id or self._is_complete(row_id):
                break
            assert len(row.tokens) == end, "drafts come after all tokens that are known"
            row.tokens.append(draft)
            end += 1
            token_id, entry = self._draw_after(row, end)
            draws.further.setdefault(row_id, []).append(token_id)
            if entry is not None:
                draws.further_logprobs.setdefault(row_id, []).append(entry)

    def _draw_after(self, row: _Row, end: int) -> tuple[int, TokenLogprobs | None]:
        context = self._read(row, end)
        row.last_sample = next_token(context, row.choice)
        if not row.num_logprobs:
            return row.last_sample, None
        best = next_candidates(context, row.num_logprobs, row.choice)
        return row.last_sample, TokenLogprobs(*best[0], 1, best)

    def _move(self, source: Memory, target: Memory, copies: Sequence[BlockCopy]) -> None:
        """All are read before one is written."""
        read = [[source.get(block * self.block_size + i) for i in range(self.block_size)] for block, _ in copies]
        for (_, block), cells in zip(copies, read, strict=True):
            for slot, cell in enumerate(cells, block * self.block_size):
                target.pop(slot, None)
                if cell is not None:
                    target[slot] = cell

    def _add_row(self, new: NewRow) -> None:
        tables = [list(ids) for ids in new.block_ids]
        choice = 0 if new.params.greedy else new.choice_index
        self.rows[new.row_id] = _Row(list(new.token_ids), tables, new.params.logprobs or 0, choice)

    def _check_forks(self, plan: StepPlan) -> None:
        """Rows that compute nothing are forks: each draws after the last position of a row that stands before it, whose
        tokens are its own and whose KV lies where its own table says."""
        sources = dict(plan.forks)
        idle = [row_id for row_id, count in zip(plan.row_ids, plan.counts, strict=True) if count == 0]
        assert sorted(sources) == sorted(idle)
        for row_id, source in sources.items():
            at, source_at = plan.row_ids.index(row_id), plan.row_ids.index(source)
            assert source_at < at, "the source of a fork stands after it"
            end = plan.starts[source_at] + plan.counts[source_at]
            assert plan.counts[source_at] > 0
            assert plan.samples[source_at]
            assert plan.samples[at]
            assert plan.starts[at] == end
            assert self.rows[row_id].tokens[:end] == self.rows[source].tokens[:end]
            assert [self._slot(table, end - 1) for table in self.rows[row_id].tables] == [
                self._slot(table, end - 1) for table in self.rows[source].tables
            ]

    def _compute(self, row: _Row, start: int, count: int, drafts: Sequence[int] = ()) -> int:
        """Returns where the drafts begin, or would."""
        self._check_windows(row, start)
        end = start + count - len(drafts)
        for position in range(start, start + count):
            if position == len(row.tokens) and position < end:
                assert row.last_sample is not None
                row.tokens.append(row.last_sample)
            token_id = row.tokens[position] if position < end else drafts[position - end]
            for memory, table in zip(self.memories, row.tables, strict=True):
                memory[self._slot(table, position)] = (position, token_id)
        return end

    def _read(self, row: _Row, end: int) -> list[int]:
        """The first ``end`` tokens of a row, as its blocks hold them."""
        contexts = [row.tokens[: self._first_seen(g, end)] + self._seen(row, g, end) for g in range(self.num_groups)]
        assert all(context == contexts[0] for context in contexts)
        return contexts[0]

    def _check_windows(self, row: _Row, start: int) -> None:
        """What the first row of a chunk sees of groups with windows is there, besides itself."""
        for group in range(len(self.windows)):
            if self.windows[group] is not None:
                first = self._first_seen(group, start + 1)
                assert self._seen(row, group, start, first) == row.tokens[first:start]

    def _first_seen(self, group: int, end: int) -> int:
        """The first position that the row before ``end`` sees."""
        window = self.windows[group] if self.windows else None
        return 0 if window is None else max(0, end - window)

    def _seen(self, row: _Row, group: int, end: int, first: int | None = None) -> list[int]:
        """Tokens from position ``first`` on (else: what the row before ``end`` sees), as the blocks hold them."""
        positions = range(self._first_seen(group, end) if first is None else first, end)
        cells = [self.memories[group][self._slot(row.tables[group], position)] for position in positions]
        assert [position for position, _ in cells] == list(positions), "a block stands at the wrong position"
        return [token for _, token in cells]

    def _slot(self, table: list[int], position: int) -> int:
        assert table[position // self.block_size] != NO_BLOCK, "a block behind the window is read"
        return table[position // self.block_size] * self.block_size + position % self.block_size
