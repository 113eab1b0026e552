"""The two real models as their files describe them (tests/real holds them to ``transformers``)."""

import time
from pathlib import Path

import pytest
import torch

from octavo.kernels.registry import select_ops
from octavo.loading.summary import model_summary
from octavo.loading.weights import load_model
from tests.support.forward import prompt_logits
from tests.support.parity import random_ids


def test_summary_of_smollm2(smollm2_path: Path) -> None:
    started = time.perf_counter()
    summary = model_summary(smollm2_path)
    assert time.perf_counter() - started < 3.0
    assert summary.num_parameters == 134_515_008
    assert summary.kinds == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert summary.config.max_position == 8192
    assert summary.kv_bytes_per_token == 30 * 2 * 3 * 64 * 4


def test_gemma3_has_six_groups(gemma3_path: Path) -> None:
    summary = model_summary(gemma3_path)
    assert [(group.window, len(group.layers)) for group in summary.groups] == [(None, 3)] + [(512, 3)] * 5


@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_a_second_run_in_the_process_gives_the_same_bits(name: str, request: pytest.FixtureRequest) -> None:
    """B50: nothing writes over the weights."""
    model = load_model(request.getfixturevalue(name), select_ops(), max_model_len=64).model
    prompt = random_ids(8, 40_000)
    first = prompt_logits(model, prompt)
    assert torch.equal(prompt_logits(model, prompt), first)
