"""Instruction sets of the same arithmetic give the same bits, in every operation and whole engines."""

import ctypes
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.kernels import native
from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import AttentionSpec
from octavo.kernels.quantized import FORMATS, QuantizedFormat
from tests.kernels.cases import BACKENDS, logical_sequence, make_ops, place, random_rows, rope_table
from tests.kernels.test_quantized import FORMAT_NAMES, random_weight
from tests.support.driving import Driver, Job, all_bits, greedy_params, run_apart
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

ISAS = [name.removeprefix("cpu-") for name in BACKENDS[1:]]
NUM_ROWS = [1, 2, 3, 5, 8, 12, 33, 129, 512]


@pytest.fixture(autouse=True)
def settings_put_back(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("OCTAVO_ISA", raising=False)
    yield
    native.load()


def assert_same_bits(compute: Callable[[CpuOps], list[Tensor]]) -> None:
    """What ``compute`` gives is the same under all instruction sets of an arithmetic."""
    results: dict[str, list[list[Tensor]]] = defaultdict(list)
    for isa in ISAS:
        ops = make_ops(f"cpu-{isa}")
        assert isinstance(ops, CpuOps)
        results[ops.arithmetic].append(compute(ops))
    for first, *others in results.values():
        for other in others:
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_instruction_sets_that_fuse_are_of_one_arithmetic() -> None:
    arithmetics = {}
    for isa in ISAS:
        ops = make_ops(f"cpu-{isa}")
        assert isinstance(ops, CpuOps)
        arithmetics[isa] = ops.arithmetic
    assert arithmetics.pop("portable").endswith("multiply, then add")
    assert all(arithmetic.endswith("fused multiply-add") for arithmetic in arithmetics.values())


def test_ceilings_are_measured_with_the_instructions_in_use() -> None:
    """Operations of three rounds, by the width of the registers and how many chains there are."""
    library, operations = native.load(), {}
    for isa in ISAS:
        native.set_isa(library, isa)
        sums, products = ctypes.c_float(), ctypes.c_int64()
        multiply_adds = library.octavo_ceiling_fma(3, ctypes.byref(sums))
        operations[isa] = (multiply_adds, library.octavo_ceiling_dot(3, ctypes.byref(products)))
        assert sums.value > 0
    expected = {"avx512": (3 * 2 * 12 * 16, 3 * 2 * 12 * 64), "avx2": (3 * 2 * 12 * 8, 3 * 2 * 8 * 32)}
    expected["portable"] = (3 * 2 * 48, 3 * 2 * 256)
    assert operations == {isa: expected[isa] for isa in ISAS}


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (70, 33), (330, 1100)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_linear(dtype: torch.dtype, num_rows: int, out_features: int, in_features: int) -> None:
    weight, bias = random_rows(out_features, in_features).to(dtype), random_rows(out_features, seed=1)
    x = random_rows(num_rows, in_features, seed=2)
    assert_same_bits(lambda ops: [ops.linear(x, ops.make_linear(weight, bias))])


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("weight_format", FORMATS, ids=FORMAT_NAMES)
def test_quantized_linear_and_table(weight_format: QuantizedFormat, num_rows: int) -> None:
    weight = random_weight(weight_format, 70, 544)
    x, ids = random_rows(num_rows, 544, seed=2), torch.arange(num_rows) % 70
    x[0, :32] *= 1e-4

    def compute(ops: CpuOps) -> list[Tensor]:
        linear = ops.make_linear(weight)
        return [ops.linear(x, linear), ops.embed(linear, ids, 1.7)]

    assert_same_bits(compute)


@pytest.mark.parametrize("weight_format", FORMATS, ids=FORMAT_NAMES)
def test_greatest_whole_sums(weight_format: QuantizedFormat) -> None:
    """No sum on the way may saturate in one of them."""
    x = torch.full((9, 64), 3.0)
    x[1::2] *= -1

    def compute(ops: CpuOps) -> list[Tensor]:
        results = []
        for number in (0xFF, 0x00, 0xF0) if weight_format.bits == 4 else (127, -128):
            weight = random_weight(weight_format, 32, 64)
            weight.numbers.fill_(number)
            results.append(ops.linear(x, ops.make_linear(weight)))
        return results

    assert_same_bits(compute)


@pytest.mark.parametrize("width", [1, 16, 84, 576])
def test_operations_on_rows(width: int) -> None:
    x, weight = 3 * random_rows(7, 2 * width), random_rows(2 * width, seed=1)
    spec = AttentionSpec(num_heads=4, num_kv_heads=1, head_dim=14, scale=1.0)
    heads = random_rows(7, 6 * 14, seed=2)
    assert_same_bits(
        lambda ops: [
            ops.norm(x, weight, 1e-6),
            ops.gate(x, "silu"),
            ops.gate(x, "gelu_tanh"),
            ops.add(x.clone(), x.flip(1)),
            ops.argmax(x, width),
            ops.norm_heads(heads.clone(), heads[0, :14], heads[1, :14], 1e-6, spec),
        ]
    )


@pytest.mark.parametrize(("head_dim", "window", "soft_cap"), [(64, None, None), (80, 20, None), (128, None, 30.0)])
def test_attention_and_what_it_reads(
    kv_dtype: torch.dtype, head_dim: int, window: int | None, soft_cap: float | None
) -> None:
    spec = AttentionSpec(6, 2, head_dim, head_dim**-0.5, window=window, soft_cap=soft_cap)
    sequences = [logical_sequence(spec, 70, 1, seed=1), logical_sequence(spec, 45, 20, seed=2)]
    num_rows = sum(sequence.num_queries for sequence in sequences)
    qkv = random_rows(num_rows, (spec.num_heads + 2 * spec.num_kv_heads) * head_dim)

    def compute(ops: CpuOps) -> list[Tensor]:
        paged = place(sequences, spec, 16, kv_dtype)
        q = ops.rotate_and_write_kv(qkv.clone(), rope_table(70, head_dim), paged.kv, paged.batch, spec)
        return [q, ops.attention(q, paged.kv, paged.batch, spec), *(held.nan_to_num(7.0) for held in paged.kv.tensors)]

    assert_same_bits(compute)


@pytest.fixture(scope="module")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_an_engine_answers_the_same_and_names_its_cache_the_same(
    rand: Path, quantization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one instruction set left on disk may be read under another if it would be the same there."""
    settings: dict[str, Any] = {"num_blocks": 40, "block_size": 4, "max_num_seqs": 4, "max_model_len": 64}
    jobs = [Job(random_ids(size, RAND_VOCAB, seed=size), greedy_params(12, logprobs=2)) for size in (3, 9, 17)]
    answers, names = defaultdict(list), defaultdict(set)
    for isa in ISAS:
        monkeypatch.setenv("OCTAVO_ISA", isa)
        ops = make_ops(f"cpu-{isa}")
        assert isinstance(ops, CpuOps)
        driver = Driver(rand, quantization=quantization, swap_space=0, **settings)
        assert CpuOps().isa == isa
        answers[ops.arithmetic].append(all_bits(run_apart(driver, jobs)))
        names[ops.arithmetic].add(driver.engine._scheduler.kv.config.fingerprint)
    assert all(answer == same[0] for same in answers.values() for answer in same)
    assert all(len(same) == 1 for same in names.values())
    assert len(set.union(*names.values())) == len(names)
