"""Weights multiplied as they are stored (dtype auto): how far from the same weights in fp32, and the promise bit for
bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import octavo.build
from octavo.kernels.cpu import CpuOps
from octavo.kernels.interface import Linear, Ops
from octavo.kernels.quantized import QuantizedWeight, quantize_activations
from octavo.kernels.registry import select_ops
from octavo.loading.checkpoint import Weights
from octavo.loading.quantization import quantize
from octavo.loading.weights import open_checkpoint
from octavo.models.registry import model_class
from tests.real.text import ALICE
from tests.support.driving import Driver, Job, all_bits, at_steps, greedy_params, run_apart
from tests.support.forward import prompt_logits

SETTINGS: dict[str, Any] = {"max_model_len": 112, "max_num_seqs": 8, "swap_space": 0}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def text_ids(path: Path, count: int) -> list[int]:
    tokenizer = octavo.build.load_tokenizer(path, None)
    ids = tokenizer.encode(ALICE, False)[:count]
    return ids if tokenizer.bos_token_id is None else [tokenizer.bos_token_id, *ids]


def logprobs(path: Path, dtype: str, num_tokens: int) -> Tensor:
    model = octavo.build.load_model(path, select_ops(), 512, dtype).model
    return prompt_logits(model, text_ids(path, num_tokens)).log_softmax(-1)


@pytest.mark.parametrize(
    ("name", "num_tokens", "divergence", "agreement"),
    [("smollm2_path", 200, 0.01, 0.93), ("gemma3_path", 50, 0.01, 0.95)],
)
def test_distributions_stay_near_those_of_fp32(
    name: str, num_tokens: int, divergence: float, agreement: float, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    exact, actual = logprobs(path, "float32", num_tokens), logprobs(path, "auto", num_tokens)
    kl = (exact.exp() * (exact - actual)).sum(-1).mean()
    same = (exact.argmax(-1) == actual.argmax(-1)).double().mean()
    print(f"{path.name}: KL {float(kl):.6f}, same likeliest token {float(same):.3f}")  # noqa: T201 (for -rP)
    assert 0 < float(kl) < divergence
    assert float(same) > agreement


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_batch_chunks_cache_and_preemption_change_no_bits(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    groups = 6 if name.startswith("gemma") else 1  # layer groups: as many times the blocks
    ids = text_ids(path, 200)
    jobs = [
        Job([ids[0], *ids[start : start + size]], greedy_params(8, logprobs=2))
        for start, size in ((1, 60), (61, 37), (98, 5))
    ]
    alone = Driver(path, checks=False, num_blocks=64 * groups, enable_prefix_caching=False, **SETTINGS)
    expected = all_bits(run_apart(alone, jobs))
    small = Driver(path, checks=False, num_blocks=7 * groups, max_num_batched_tokens=23, **SETTINGS)
    assert all_bits(small.run(at_steps(jobs, [0, 0, 1]))) == expected
    assert small.stats.num_preemptions > 0
    assert all_bits(small.run(jobs)) == expected
    assert small.stats.prefix_hits > 0


class Rounded(Weights):
    """The file's weights in fp32, each matrix rounded to int8 as Q8_0 rounds; ``unpacked`` again to fp32, or not."""

    def __init__(self, path: Path, unpacked: bool) -> None:
        checkpoint = open_checkpoint(path)
        super().__init__(checkpoint, unpack=True)
        self.config = replace(checkpoint.config, max_position=512)
        self._unpacked = unpacked

    def matrix(self, name: str) -> Tensor | QuantizedWeight:
        weight = quantize(self[name], "int8")
        assert isinstance(weight, QuantizedWeight)
        return weight.dequantize() if self._unpacked else weight


class EightBitActivations(CpuOps):
    """Activations rounded to 8 bits in groups of 32, as llama.cpp rounds them beside Q8_0 weights."""

    def linear(self, x: Tensor, weight: Linear) -> Tensor:
        numbers, scales = quantize_activations(x, 32, 127)
        return super().linear((numbers * scales.unsqueeze(2)).view(x.shape), weight)


def test_int8_loses_less_than_with_activations_in_8_bits(smollm2_path: Path) -> None:
    """Of the same fp32 weights, against the rule of llama.cpp's Q8_0."""
    ids = text_ids(smollm2_path, 100)
    exact = logprobs(smollm2_path, "float32", 100)

    def divergence(weights: Rounded, ops: Ops) -> float:
        actual = prompt_logits(model_class(weights.config)(weights.config, weights, ops), ids).log_softmax(-1)
        return float((exact.exp() * (exact - actual)).sum(-1).mean())

    in_16_bits = divergence(Rounded(smollm2_path, unpacked=False), CpuOps())
    in_8_bits = divergence(Rounded(smollm2_path, unpacked=True), EightBitActivations())
    print(f"KL with activations in 16 bits {in_16_bits:.6f}, in 8 bits {in_8_bits:.6f}")  # noqa: T201 (for -rP)
    assert 0 < in_16_bits < in_8_bits
