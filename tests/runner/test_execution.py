"""A recorded step against the same operations one by one, bit for bit; what it refuses; how registers share memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo import LLM, SamplingParams
from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import BatchLayout, KVLayer, allocate_kv
from octavo.kernels.recording import FIRST_MAX_ROWS, CpuRecordedStep
from octavo.loading.weights import load_model
from octavo.models.interface import Model
from octavo.runner import execution
from octavo.runner.execution import Execution, ModelStep, make_execution
from tests.support.models import RAND_VOCAB, rand_model

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
SHARED = list(range(30, 70))
PROMPTS = ([*SHARED, 5], [*SHARED, 6, 7], [9], list(range(100, 190)), [*SHARED[:21], 8])
PARAMS = (
    SamplingParams(max_tokens=12, seed=1, n=3, logprobs=2, ignore_eos=True),
    SamplingParams(max_tokens=5, temperature=0.0, logprobs=0, ignore_eos=True),
    SamplingParams(max_tokens=20, seed=2, top_k=9, prompt_logprobs=1, ignore_eos=True),
    SamplingParams(max_tokens=9, temperature=0.0, prompt_logprobs=2, ignore_eos=True),
    SamplingParams(max_tokens=7, temperature=0.0, repetition_penalty=1.4, ignore_eos=True),
)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def threads() -> Iterator[None]:
    yield
    CpuOps()  # those that the environment asks for


def answers(path: Path, **settings: Any) -> list[Any]:
    """Tokens and logprobs from a pool so small that requests are preempted, twice: the second time with prefix hits."""
    num_blocks = 45 * (6 if "gemma3" in str(path) else 1)  # layer groups
    limits = {"num_blocks": num_blocks, "block_size": 4, "max_num_batched_tokens": 32, "max_num_seqs": 32}
    llm = LLM(str(path), backend="cpu", **limits, **settings)
    outputs = llm.generate(list(PROMPTS), list(PARAMS)) + llm.generate(list(PROMPTS), list(PARAMS))
    return [(o.prompt_logprobs, [(c.token_ids, c.logprobs) for c in o.outputs]) for o in outputs]


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_recorded_and_eager_answers_are_the_same_bits(
    path: Path, kv_cache_dtype: str, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    recorded = answers(path, kv_cache_dtype=kv_cache_dtype, threads=2)
    monkeypatch.setattr(CpuOps, "record", lambda *_: None)
    assert answers(path, kv_cache_dtype=kv_cache_dtype, threads=1) == recorded


NUM_BLOCKS, BLOCK_SIZE = 64, 16


class Machine:
    """A model with KV memory of its own, for steps of one sequence from position 0 on."""

    def __init__(self, model: Model, ops: CpuOps) -> None:
        config = model.config
        self.kv = [
            (allocate_kv(NUM_BLOCKS, BLOCK_SIZE, config.num_kv_heads, config.head_dim, torch.float32), 0)
            for _ in range(config.num_layers)
        ]
        self.step = ModelStep(model, ops, RAND_VOCAB)
        self.execution: Execution = make_execution(model, ops, self.kv, RAND_VOCAB)

    def run(self, num_rows: int, head_rows: Sequence[int], **changes: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Pieces of logits and best tokens; ``changes``: fields of the layout, or ``token_ids``."""
        token_ids = changes.pop("token_ids", torch.arange(num_rows) % RAND_VOCAB)
        layout = {
            "positions": torch.arange(num_rows, dtype=torch.int32),
            "slots": torch.arange(num_rows),
            "query_starts": torch.tensor([0, num_rows], dtype=torch.int32),
            "context_lens": torch.tensor([num_rows], dtype=torch.int32),
            "block_tables": torch.arange(NUM_BLOCKS, dtype=torch.int32)[None],
        }
        layouts = [BatchLayout(**(layout | changes))]
        pieces = self.execution.run(token_ids, layouts, torch.tensor(head_rows, dtype=torch.int64))
        return [(logits.clone(), best.clone()) for logits, best in pieces]


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    ops = CpuOps()
    return Machine(load_model(rand_model(tmp_path_factory.mktemp("model")), ops, None).model, ops)


def test_a_step_larger_than_any_before_and_small_ones_after(machine: Machine) -> None:
    small = machine.run(3, [2])
    large = machine.run(FIRST_MAX_ROWS + 1, [2, 0, 2])
    assert torch.equal(large[0][0][[0, 2]], small[0][0].expand(2, -1))
    assert torch.equal(machine.run(3, [2])[0][0], small[0][0])
    more_heads = machine.run(3, [2, 1, 0] * FIRST_MAX_ROWS)
    assert torch.equal(more_heads[0][0][0], small[0][0][0])


def test_without_memory_for_a_larger_step_the_next_one_tries_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rows = FIRST_MAX_ROWS + 7

    def refuse(self: CpuRecordedStep, max_rows: int) -> None:
        raise MemoryError(f"{max_rows} rows")

    with monkeypatch.context() as patch:
        patch.setattr(CpuRecordedStep, "_record", refuse)
        with pytest.raises(MemoryError):
            machine.run(num_rows, [0])
        with pytest.raises(MemoryError):
            machine.run(1, [0])
    assert len(machine.run(num_rows, [0])) == 1


def test_the_head_takes_a_few_rows_at_a_time(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    head_rows = [7, 0, 7, 3, 1, 6, 5]
    ((whole, best_ids),) = machine.run(8, head_rows)
    monkeypatch.setattr(execution, "MAX_LOGITS", 3 * RAND_VOCAB + 1)
    model, ops = machine.step.model, machine.step.ops
    assert isinstance(ops, CpuOps)
    pieces = Machine(model, ops).run(8, head_rows)
    assert [len(logits) for logits, _ in pieces] == [3, 3, 1]
    assert torch.equal(torch.cat([logits for logits, _ in pieces]), whole)
    assert torch.equal(torch.cat([best for _, best in pieces]), best_ids)
    assert best_ids.tolist() == whole.argmax(dim=1).tolist()


def test_a_step_without_head_rows_writes_keys_and_values(machine: Machine) -> None:
    assert machine.run(4, []) == []
    held: KVLayer = machine.kv[-1][0]
    assert held.values[0, :, :4].abs().min() > 0
    assert not held.values[0, :, 4:].any()


@pytest.mark.parametrize(
    ("changes", "head_rows", "message"),
    [
        ({"token_ids": torch.tensor([1, RAND_VOCAB])}, [0], f"a row outside 0 .. {RAND_VOCAB - 1}"),
        ({"slots": torch.tensor([0, NUM_BLOCKS * BLOCK_SIZE])}, [0], "a slot outside the KV memory"),
        ({"positions": torch.tensor([0, 10**6], dtype=torch.int32)}, [0], "a position past the rotary table"),
        ({"block_tables": torch.tensor([[-1]], dtype=torch.int32)}, [0], "a block table without a block"),
        ({}, [2], "a row outside 0 .. 1"),
        ({}, [-1], "a row outside 0 .. 1"),
    ],
)
def test_an_index_outside_the_memory_is_an_error_and_the_next_step_runs(
    machine: Machine, changes: dict[str, Tensor], head_rows: list[int], message: str
) -> None:
    expected = machine.run(2, [0])
    with pytest.raises(IndexError, match=message):
        machine.run(2, head_rows, **changes)
    (again,) = machine.run(2, [0])
    assert torch.equal(again[0], expected[0][0])


def test_registers_share_memory_as_soon_as_the_model_lets_go(machine: Machine) -> None:
    recorded = machine.execution
    assert isinstance(recorded, CpuRecordedStep)
    recording = recorded._recording
    assert recording is not None
    program = recording._program
    config = machine.step.model.config
    # A layer's norms are one with the sums before them.
    assert len(program) == 1 + 1 + 9 * config.num_layers + 4
    # Beside inputs and results: two of the hidden size (the sum and what is added), one a kind of the others.
    assert sum(map(len, program._unused.values())) <= 9


def test_what_a_step_may_not_look_into_says_so(machine: Machine) -> None:
    """A model that left the operations would otherwise compute on memory that is not filled in yet."""

    class Leaving(ModelStep):
        def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
            return super().head(hidden * 2.0)

    ops = machine.step.ops
    with pytest.raises(TypeError):
        ops.record(Leaving(machine.step.model, ops, RAND_VOCAB), machine.kv, 8)
    assert torch.equal(ops.argmax(torch.eye(4), 4), torch.arange(4)), "recording has ended"


@pytest.mark.parametrize("width", [1, 15, 16, 17, 256, 257, 1000])
def test_argmax_is_that_of_numpy(width: int) -> None:
    generator = np.random.default_rng(width)
    rows = generator.integers(-3, 3, (40, width + 3)).astype(np.float32)
    for number, special in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
        rows[number::8][:, generator.integers(width, size=2)] = special
    rows[5], rows[6] = -np.inf, -7.0
    best = CpuOps().argmax(torch.from_numpy(rows), width)
    assert best.dtype == torch.int64
    assert best.tolist() == rows[:, :width].argmax(axis=1).tolist()
