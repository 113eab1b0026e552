"""A runner without a model: its KV memory holds the tokens themselves, so that a wrong block table is seen at once."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from octavo.core.step import NewRow, RowFault, StepPlan, StepResult, TokenLogprobs

VOCAB_SIZE = 1000
Memory = dict[int, tuple[int, int]]
"""slot -> (position, token id)"""


def next_token(context: Sequence[int]) -> int:
    """The fake model: any foreign or missing token in the context changes the answer."""
    return int.from_bytes(blake2b(repr(list(context)).encode(), digest_size=4).digest()) % VOCAB_SIZE


def next_candidates(context: Sequence[int], count: int) -> tuple[tuple[int, float], ...]:
    """The best tokens after a context and their logprobs: the first is what ``next_token`` says."""
    first = next_token(context)
    ranked = [(first + 7 * rank) % VOCAB_SIZE for rank in range(count)]
    steps = blake2b(repr(list(context)).encode(), digest_size=64, person=b"logprobs").digest()
    logprobs, total = [], -0.1
    for rank in range(count):
        total -= steps[rank % 64] / 100
        logprobs.append(total)
    return tuple(zip(ranked, logprobs, strict=True))


def expected_output(prompt: Sequence[int], max_tokens: int, stop_ids: frozenset[int] = frozenset()) -> list[int]:
    """What the fake model generates for a request alone."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids:
            break
    return tokens[len(prompt) :]


@dataclass
class _Row:
    tokens: list[int]
    tables: list[list[int]]
    num_logprobs: int
    last_sample: int | None = None


@dataclass
class _Pending:
    run: Callable[[], StepResult]

    def result(self) -> StepResult:
        return self.run()


@dataclass
class FakeRunner:
    """Steps are carried out when their result is asked for, in order of submission; ``fails`` may raise; a row for
    which ``faults`` is true has no token to draw."""

    block_size: int
    num_groups: int = 1
    fails: Callable[[StepPlan], None] = lambda plan: None
    faults: Callable[[int], bool] = lambda row_id: False
    plans: list[StepPlan] = field(default_factory=list)
    rows: dict[int, _Row] = field(default_factory=dict)
    memories: list[Memory] = field(default_factory=list)
    _queue: deque[StepPlan] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.memories = [{} for _ in range(self.num_groups)]

    def submit(self, plan: StepPlan) -> _Pending:
        self.plans.append(plan)
        self._queue.append(plan)
        return _Pending(self._carry_out)

    def reset(self) -> None:
        self.rows.clear()
        self._queue.clear()

    def _carry_out(self) -> StepResult:
        plan = self._queue.popleft()
        for copy in plan.copies:
            for memory in self.memories:
                for offset in range(self.block_size):
                    source, target = (block * self.block_size + offset for block in copy)
                    if source in memory:
                        memory[target] = memory[source]
        for new in plan.new_rows:
            self._add_row(new)
        for write in plan.table_writes:
            table = self.rows[write.row_id].tables[write.group]
            table.extend([-1] * (write.logical_block + 1 - len(table)))
            table[write.logical_block] = write.block_id
        self.fails(plan)
        drawn = []
        logprobs = {}
        scheduled = zip(plan.row_ids, plan.starts, plan.counts, plan.samples, strict=True)
        computed = [(row_id, self._compute(self.rows[row_id], start, count), samples)
                    for row_id, start, count, samples in scheduled]  # fmt: skip
        for row_id, end, samples in computed:
            if samples:
                row = self.rows[row_id]
                drawn.append(self._sample(row, end))
                if row.num_logprobs:
                    best = next_candidates(row.tokens[:end], row.num_logprobs)
                    logprobs[row_id] = TokenLogprobs(*best[0], 1, best)
        for row_id in plan.released_rows:
            del self.rows[row_id]
        faults = {row_id: RowFault("stuck", False) for row_id in plan.row_ids if self.faults(row_id)}
        return StepResult(plan.step_id, tuple(drawn), logprobs=logprobs, faults=faults)

    def _add_row(self, new: NewRow) -> None:
        tables = [list(ids) for ids in new.block_ids]
        self.rows[new.row_id] = _Row(list(new.token_ids), tables, new.params.logprobs or 0)

    def _compute(self, row: _Row, start: int, count: int) -> int:
        for position in range(start, start + count):
            if position == len(row.tokens):
                assert row.last_sample is not None
                row.tokens.append(row.last_sample)
            for memory, table in zip(self.memories, row.tables, strict=True):
                memory[self._slot(table, position)] = (position, row.tokens[position])
        return start + count

    def _sample(self, row: _Row, end: int) -> int:
        contexts = []
        for memory, table in zip(self.memories, row.tables, strict=True):
            cells = [memory[self._slot(table, position)] for position in range(end)]
            assert [position for position, _ in cells] == list(range(end)), "a block stands at the wrong position"
            contexts.append([token for _, token in cells])
        assert all(context == contexts[0] for context in contexts)
        row.last_sample = next_token(contexts[0])
        return row.last_sample

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self.block_size] * self.block_size + position % self.block_size
