"""The inputs of a step: arrays moved on in place hold what arrays made anew would, whoever comes and goes."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.core.step import NewRow, StepPlan, TableWrite
from octavo.runner import input_batch
from octavo.runner.decode_inputs import DecodeInputs
from octavo.runner.input_batch import InputBatch
from octavo.runner.row_sampling import RowSampling
from octavo.runner.step_inputs import StepInputs
from tests.support.models import rand_model

NUM_GROUPS, BLOCK_SIZE, MAX_BLOCKS = 2, 4, 60


class Schedule:
    """Random rows that are computed token by token or in chunks, get blocks, and end; told to several batches."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.tokens: dict[int, list[int]] = {}
        self.num_computed: dict[int, int] = {}
        self.num_blocks: dict[int, int] = {}
        self.released: list[int] = []
        self.next_id = 0

    def block(self) -> int:
        return self.source.randrange(1000)

    def new_row(self) -> NewRow:
        row_id, self.next_id = self.next_id, self.next_id + 1
        tokens = [self.source.randrange(100) for _ in range(self.source.randint(1, 9))]
        blocks = -(-len(tokens) // BLOCK_SIZE)
        self.tokens[row_id], self.num_computed[row_id], self.num_blocks[row_id] = tokens, 0, blocks
        block_ids = tuple(tuple(self.block() for _ in range(blocks)) for _ in range(NUM_GROUPS))
        prompt_logprobs = self.source.choice([None, None, 1])
        params = SamplingParams(temperature=0.0, prompt_logprobs=prompt_logprobs, max_tokens=500)
        return NewRow(row_id, tuple(tokens), len(tokens), block_ids, params, 0, 0, frozenset())

    def plan(self, step_id: int, chunks: bool) -> StepPlan:
        for row_id in self.released:
            del self.tokens[row_id], self.num_computed[row_id], self.num_blocks[row_id]
        new_rows = [self.new_row() for _ in range(self.source.randint(0, 3))] if chunks or not self.tokens else []
        if len(self.tokens) < 2:
            new_rows.append(self.new_row())
        writes, counts = [], []
        for row_id, tokens in self.tokens.items():
            lacking = len(tokens) - self.num_computed[row_id]
            counts.append(self.source.randint(1, lacking) if chunks else lacking)
            while self.num_blocks[row_id] * BLOCK_SIZE < len(tokens):
                place = self.num_blocks[row_id]
                writes += [TableWrite(row_id, group, place, self.block()) for group in range(NUM_GROUPS)]
                self.num_blocks[row_id] += 1
            if self.source.random() < 0.1:  # the cache has the same contents already
                writes.append(TableWrite(row_id, self.source.randrange(NUM_GROUPS), 0, self.block()))
        starts = [self.num_computed[row_id] for row_id in self.tokens]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        samples = [end == len(tokens) for end, tokens in zip(ends, self.tokens.values(), strict=True)]
        self.released = [
            row_id
            for row_id, tokens in self.tokens.items()
            if len(tokens) > 200 or (chunks and self.source.random() < 0.1)
        ]
        return StepPlan(
            step_id, (), (), (), tuple(new_rows), tuple(writes), tuple(self.tokens), tuple(starts), tuple(counts),
            tuple(samples), tuple(self.released),
        )  # fmt: skip

    def land(self, plan: StepPlan) -> list[int]:
        """The tokens that the step draws."""
        drawn = []
        for row_id, count, samples in zip(plan.row_ids, plan.counts, plan.samples, strict=True):
            self.num_computed[row_id] += count
            if samples:
                drawn.append(self.source.randrange(100))
                self.tokens[row_id].append(drawn[-1])
        return drawn


def inputs_of(batch: InputBatch, plan: StepPlan) -> StepInputs:
    for new in plan.new_rows:
        batch.add(new, RowSampling(new, 100))
    batch.write_tables(plan.table_writes)
    return batch.inputs(plan)


def numbers(inputs: StepInputs) -> list[Any]:
    """All that a step reads; of a table what is in use."""
    found: list[Any] = [inputs.token_ids.tolist(), inputs.head_rows.tolist(), inputs.known, inputs.drawing.positions]
    for layout in inputs.layouts:
        found += [layout.positions.tolist(), layout.slots.tolist(), layout.query_starts.tolist()]
        found += [layout.context_lens.tolist()]
        found += [[entry for entry in line if entry != -1] for line in layout.block_tables.tolist()]
        kinds = {layout.positions.dtype, layout.query_starts.dtype, layout.context_lens.dtype}
        assert (kinds, layout.slots.dtype, layout.block_tables.dtype) == ({torch.int32}, torch.int64, torch.int32)
    assert inputs.token_ids.dtype == inputs.head_rows.dtype == torch.int64
    return found


@pytest.mark.parametrize("seed", range(8))
def test_decode_inputs_are_those_made_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Schedule(seed)
    batches = [InputBatch(NUM_GROUPS, BLOCK_SIZE, MAX_BLOCKS) for _ in range(2)]
    num_moved, chunks = 0, True
    for step_id in range(300):
        chunks = schedule.source.random() < (0.5 if chunks else 0.05)
        plan = schedule.plan(step_id, chunks)
        num_moved += batches[0]._decode is not None and batches[0]._decode.fits(plan)
        moved = inputs_of(batches[0], plan)
        with monkeypatch.context() as patch:
            patch.setattr(input_batch, "is_decode", lambda _: False)
            anew = inputs_of(batches[1], plan)
        assert numbers(moved) == numbers(anew)
        drawn = schedule.land(plan)
        for batch, inputs in zip(batches, (moved, anew), strict=True):
            inputs.drawing.append(drawn)
            batch.release(plan.released_rows)
    assert num_moved > 100


def test_the_same_rows_get_the_same_arrays() -> None:
    batch = InputBatch(1, BLOCK_SIZE, MAX_BLOCKS)
    new = NewRow(3, (1, 2), 2, ((5,),), SamplingParams(), 0, 0, frozenset())

    def step(start: int, *writes: TableWrite) -> StepInputs:
        plan = StepPlan(start, (), (), (), (), writes, (3,), (start,), (1,), (True,), ())
        inputs = inputs_of(batch, plan)
        inputs.drawing.append([9])
        return inputs

    batch.add(new, RowSampling(new, 100))
    first = step(1)
    second = step(2)
    assert second is first
    assert second.layouts[0].slots.tolist() == [5 * BLOCK_SIZE + 2]
    step(3)
    third = step(4, TableWrite(3, 0, 1, 7))
    assert third is first
    assert third.layouts[0].slots.tolist() == [7 * BLOCK_SIZE]
    outgrown = step(5, TableWrite(3, 0, 1 + input_batch.SPARE_BLOCKS, 8))
    assert outgrown is not first
    assert outgrown.layouts[0].block_tables.shape[1] > first.layouts[0].block_tables.shape[1]


PARAMS = [
    SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=25, seed=3, n=3, logprobs=2, ignore_eos=True),
    SamplingParams(max_tokens=40, seed=4, top_p=0.8, repetition_penalty=1.2, prompt_logprobs=1, ignore_eos=True),
    SamplingParams(max_tokens=9, temperature=0.0, min_tokens=5, logit_bias={7: 2.0}),
]


def test_answers_are_the_same_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pool so small that requests are preempted, with a sliding window (two layer groups)."""
    path = rand_model(tmp_path / "model", "gemma3")

    def answers() -> list[Any]:
        sizes = {"num_blocks": 120, "block_size": 4, "max_num_batched_tokens": 24, "max_num_seqs": 8}
        llm = LLM(str(path), backend="cpu", speculation="off", **sizes)
        outputs = llm.generate([[5, 6, 7] * (2 + index) for index in range(4)], PARAMS)
        return [(o.prompt_logprobs, [(c.token_ids, c.logprobs) for c in o.outputs]) for o in outputs]

    moved, num_moved = DecodeInputs.move_to, []
    monkeypatch.setattr(DecodeInputs, "move_to", lambda *args: (num_moved.append(1), moved(*args))[1])
    expected = answers()
    assert len(num_moved) > 10
    monkeypatch.setattr(input_batch, "is_decode", lambda _: False)
    assert answers() == expected
    assert sum(num_moved) == len(num_moved)
