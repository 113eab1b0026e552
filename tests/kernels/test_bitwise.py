"""The bitwise rule: a row's bits follow from its own values, position and context, inside one back end."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import AttentionSpec, BatchLayout, Ops
from octavo.kernels.reference import ReferenceOps
from tests.kernels.cases import LogicalSequence, logical_sequence, place, poisoned_kv, random_rows, rope_table

NUM_ROWS = [2, 3, 5, 8, 33, 129]
WIDTH = 84  # no multiple of 16, so tails are at stake


def rows_of(ops: Ops, num_rows: int) -> list[int]:
    """Rows of a batch to compare: all, or the first, a middle and the last ones where the reference is slow."""
    return sorted({0, num_rows // 2, num_rows - 1}) if isinstance(ops, ReferenceOps) else list(range(num_rows))


@pytest.fixture(params=["linear", "norm", "silu", "gelu_tanh", "norm_heads", "embed", "add"])
def operation(request: pytest.FixtureRequest, ops: Ops) -> Callable[[Tensor], Tensor]:
    weight, bias = random_rows(3 * 16 + 5, WIDTH, seed=1), random_rows(3 * 16 + 5, seed=2)
    spec = AttentionSpec(num_heads=4, num_kv_heads=1, head_dim=14, scale=1.0)
    linear = ops.make_linear(weight, bias)
    operations: dict[str, Callable[[Tensor], Tensor]] = {
        "linear": lambda x: ops.linear(x, linear),
        "norm": lambda x: ops.norm(x, weight[0], 1e-6),
        "silu": lambda x: ops.gate(x, "silu"),
        "gelu_tanh": lambda x: ops.gate(x, "gelu_tanh"),
        "norm_heads": lambda x: ops.norm_heads(x.clone(), weight[0, :14], weight[1, :14], 1e-6, spec),
        "embed": lambda x: ops.embed(x, torch.arange(x.shape[0]), 0.3),
        "add": lambda x: ops.add(x.clone(), x.flip(1)),
    }
    return operations[request.param]


@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_a_row_does_not_depend_on_its_neighbours(
    ops: Ops, operation: Callable[[Tensor], Tensor], num_rows: int
) -> None:
    x = random_rows(num_rows, WIDTH)
    together = operation(x)
    for row in rows_of(ops, num_rows):
        assert torch.equal(operation(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("num_rows", [1, 7, 50, 300])
def test_wide_linears_are_blocked_without_changing_bits(cpu_ops: Ops, num_rows: int) -> None:
    linear = cpu_ops.make_linear(random_rows(330, 4200))
    x = random_rows(num_rows, 4200, seed=1)
    alone = torch.cat([cpu_ops.linear(row, linear) for row in x.split(1)])
    assert torch.equal(cpu_ops.linear(x, linear), alone)


class Prompt:
    """Queries, keys and values of a prompt, to be computed in chunks of any size."""

    def __init__(self, spec: AttentionSpec, length: int, block_size: int, dtype: torch.dtype, seed: int) -> None:
        self.spec, self.block_size = spec, block_size
        self.qkv = random_rows(length, (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim)
        self.rope = rope_table(length, spec.head_dim)
        count = -(-length // block_size)
        self.kv = poisoned_kv(2 * count, block_size, spec, dtype)
        self.table = torch.randperm(2 * count, generator=torch.Generator().manual_seed(seed))[:count].int()

    def layout(self, begin: int, end: int) -> BatchLayout:
        positions = torch.arange(begin, end)
        slots = self.table[positions // self.block_size].long() * self.block_size + positions % self.block_size
        return BatchLayout(
            positions=positions.int(),
            slots=slots,
            query_starts=torch.tensor([0, end - begin], dtype=torch.int32),
            context_lens=torch.tensor([end], dtype=torch.int32),
            block_tables=self.table[None],
        )

    def compute(self, ops: Ops, cuts: list[int]) -> Tensor:
        out = []
        for begin, end in zip([0, *cuts], [*cuts, len(self.qkv)], strict=True):
            batch = self.layout(begin, end)
            q = ops.rotate_and_write_kv(self.qkv[begin:end].clone(), self.rope, self.kv, batch, self.spec)
            out.append(ops.attention(q, self.kv, batch, self.spec))
        return torch.cat(out)


@pytest.mark.parametrize("window", [None, 11])
@pytest.mark.parametrize(("num_heads", "head_dim"), [(6, 16), (6, 72), (2, 16)])
def test_chunks_blocks_and_placement_change_no_bits(
    ops: Ops, kv_dtype: torch.dtype, window: int | None, num_heads: int, head_dim: int
) -> None:
    spec = AttentionSpec(num_heads, 2, head_dim, scale=0.2, window=window, soft_cap=20.0)
    length = 37
    whole = Prompt(spec, length, 16, kv_dtype, seed=0).compute(ops, [])
    cuts = [[1], [16, 32], [7, 8, 9, 30], list(range(1, length))]
    ways = [(size, cut) for size in (4, 16, 24, 32) for cut in cuts]
    if isinstance(ops, ReferenceOps):  # each size and each cut once: it is slow
        ways = list(zip((4, 16, 24, 32), cuts, strict=True))
    for seed, (block_size, cut) in enumerate(ways):
        assert torch.equal(Prompt(spec, length, block_size, kv_dtype, seed).compute(ops, cut), whole)


def test_attention_of_a_sequence_does_not_depend_on_the_batch(ops: Ops, kv_dtype: torch.dtype) -> None:
    spec = AttentionSpec(6, 2, 64, scale=0.125)
    sequences = [
        logical_sequence(spec, context, queries, seed=i)
        for i, (context, queries) in enumerate([(60, 33), (200, 1), (7, 7), (130, 5), (64, 1)])
    ]
    together = attend(ops, sequences, spec, 16, kv_dtype)
    for number, sequence in enumerate(sequences):
        begin = sum(s.num_queries for s in sequences[:number])
        alone = attend(ops, [sequence], spec, 4, kv_dtype, first_row=begin)
        assert torch.equal(alone, together[begin : begin + sequence.num_queries])


def attend(
    ops: Ops,
    sequences: list[LogicalSequence],
    spec: AttentionSpec,
    block_size: int,
    dtype: torch.dtype,
    first_row: int = 0,
) -> Tensor:
    paged = place(sequences, spec, block_size, dtype, seed=block_size)
    q = random_rows(200, spec.num_heads * spec.head_dim, seed=5)[first_row : first_row + paged.batch.num_rows]
    return ops.attention(q, paged.kv, paged.batch, spec)


@pytest.fixture
def threads_of(cpu_ops: Ops) -> Iterator[Callable[[int], None]]:
    assert isinstance(cpu_ops, CpuOps)
    before = cpu_ops.num_threads
    yield cpu_ops.set_num_threads
    cpu_ops.set_num_threads(before)


@pytest.mark.parametrize("num_rows", [1, 6, 80])
def test_the_number_of_threads_changes_no_bits(
    cpu_ops: Ops, kv_dtype: torch.dtype, threads_of: Callable[[int], None], num_rows: int
) -> None:
    spec = AttentionSpec(8, 2, 40, scale=0.2)
    linear = cpu_ops.make_linear(random_rows(16 * 40 + 3, 480))
    x = random_rows(num_rows, 480, seed=1)
    sequences = [logical_sequence(spec, 100 + num_rows, num_rows, seed=3), logical_sequence(spec, 333, 1, seed=4)]

    def everything() -> list[Tensor]:
        normed = cpu_ops.norm_heads(x.clone(), x[0, :40], x[0, 40:80], 1e-6, spec)
        paged = place([logical_sequence(spec, num_rows, num_rows, seed=0)], spec, 16, kv_dtype)
        q = cpu_ops.rotate_and_write_kv(normed, rope_table(num_rows, 40), paged.kv, paged.batch, spec)
        return [
            q,
            cpu_ops.attention(q, paged.kv, paged.batch, spec),
            attend(cpu_ops, sequences, spec, 16, kv_dtype),
            cpu_ops.linear(x, linear),
            cpu_ops.gate(x, "silu"),
            cpu_ops.norm(x, x[0], 1e-6),
            cpu_ops.add(x.clone(), x),
            cpu_ops.embed(x, torch.arange(num_rows), 2.0),
        ]

    threads_of(1)
    serial = everything()
    for count in (2, 3, 4):
        threads_of(count)
        for one, other in zip(serial, everything(), strict=True):
            assert torch.equal(one, other)
