"""The KV sanitizer on a real model: answers are the same bits, what is dropped is NaN, a fault ends the engine."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import octavo.build
from octavo.core.kv_fault import KVFaultError
from octavo.core.kv_manager import KVCacheManager
from octavo.core.sampling_params import SamplingParams
from octavo.core.sanitizer import KVSanitizer
from octavo.core.step import StepPlan
from octavo.kernels.interface import KVLayer
from octavo.runner.model_runner import ModelRunner
from tests.real.text import ALICE
from tests.support.driving import Driver, Job, all_bits, greedy_params

SETTINGS: dict[str, Any] = {"num_blocks": 40, "block_size": 4, "max_model_len": 96, "max_num_seqs": 4}
"""Two of the longer sequences below take more than the pool has: some are preempted."""

pytestmark = pytest.mark.slow


def jobs(path: Path) -> list[Job]:
    ids = octavo.build.load_tokenizer(path, None).encode(ALICE, False)
    lengths = [5, 16, 33, 40, 41, 48]
    prompts = [[*ids[: length - 1], 1000 + number] for number, length in enumerate(lengths)]
    return [Job(prompt, greedy_params(44, logprobs=1)) for prompt in prompts]


def watched(driver: Driver) -> tuple[list[StepPlan], list[KVLayer]]:
    """Plans as the runner gets them from now on, and the pool's memory."""
    sanitizer = driver.engine._runner
    assert isinstance(sanitizer, KVSanitizer)
    runner = sanitizer._runner
    assert isinstance(runner, ModelRunner)
    plans: list[StepPlan] = []
    submit = runner.submit

    def noted(plan: StepPlan) -> Any:
        plans.append(plan)
        return submit(plan)

    runner.submit = noted  # type: ignore[method-assign]
    return plans, list(runner._kv.slots)


def mixed_answers(path: Path, **settings: Any) -> list[Any]:
    """Of greedy requests and one with several seeded choices, in a pool that is too small for them."""
    driver = Driver(path, checks=False, **SETTINGS | settings)
    assert isinstance(driver.engine._runner, KVSanitizer) == settings["kv_sanitizer"]
    choices = SamplingParams(n=3, seed=1, max_tokens=20, ignore_eos=True, logprobs=1)
    every = jobs(path)
    answers = all_bits(driver.run([Job(every[0].prompt, choices), *every]))
    assert driver.stats.copy_on_write_copies > 0
    assert driver.stats.num_preemptions > 0
    return answers


@pytest.fixture(scope="module")
def unwatched(smollm2_path: Path) -> Callable[[str], list[Any]]:
    """The answers without the sanitizer, for a type of KV cache; how sequences give way changes none of them."""
    return cache(lambda kv_cache_dtype: mixed_answers(smollm2_path, kv_sanitizer=False, kv_cache_dtype=kv_cache_dtype))


@pytest.mark.parametrize(
    "more", [{"preemption_mode": "swap"}, {"preemption_mode": "recompute"}, {"kv_cache_dtype": "int8"}]
)
def test_answers_are_the_same_bits(
    smollm2_path: Path, more: dict[str, Any], unwatched: Callable[[str], list[Any]]
) -> None:
    """Poisoned blocks are given out again, copied and swapped: what is not filled is never read."""
    expected = unwatched(more.get("kv_cache_dtype", "auto"))
    assert mixed_answers(smollm2_path, kv_sanitizer=True, **more) == expected


@pytest.mark.parametrize("kv_cache_dtype", ["fp32", "fp16", "int8"])
def test_dropped_contents_read_as_nan(smollm2_path: Path, kv_cache_dtype: str) -> None:
    settings = SETTINGS | {"kv_cache_dtype": kv_cache_dtype, "enable_prefix_caching": False}
    driver = Driver(smollm2_path, kv_sanitizer=True, **settings)
    plans, slots = watched(driver)
    first = jobs(smollm2_path)[0]
    driver.run([first])
    assert not any(plan.poisons for plan in plans)
    driver.run([Job(first.prompt, greedy_params(2))])
    poisoned = {block_id for plan in plans for block_id in plan.poisons}
    written = plans[-2].new_rows[0].block_ids[0][1]
    assert len(poisoned) == 12, "the blocks of 5 + 43 tokens (the last one drawn is not computed)"
    assert written in poisoned
    for layer in slots:
        floats = [tensor for tensor in layer.tensors if tensor.is_floating_point()]
        assert len(floats) == 2
        for tensor in floats:
            assert torch.isnan(tensor[max(poisoned)]).all()
            assert torch.isnan(tensor[written]).any(), "slots that are not filled"
            assert not torch.isnan(tensor[written]).all()


def test_a_fault_ends_the_engine_and_is_no_failure_of_a_request(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves ``step``: in the engine's process that is the end of it, which the server notices."""
    driver = Driver(smollm2_path, kv_sanitizer=True, checks=False, **SETTINGS)
    append: Callable[..., Any] = KVCacheManager._append

    def shifted(self: KVCacheManager, *args: Any) -> Any:
        return [write._replace(logical_block=write.logical_block - 1) for write in append(self, *args)]

    monkeypatch.setattr(KVCacheManager, "_append", shifted)
    request_id = driver.add(jobs(smollm2_path)[0].prompt, greedy_params(24))
    with pytest.raises(KVFaultError, match="wrong table entry"):
        driver.finish()
    assert driver.answers[request_id][0].finish_reason is None
    assert driver.stats.failed == 0


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("0", False), ("", False), (None, False)])
def test_the_environment_decides_where_nothing_else_is_said(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, is_on: bool
) -> None:
    if value is None:
        monkeypatch.delenv("OCTAVO_KV_SANITIZER")
    else:
        monkeypatch.setenv("OCTAVO_KV_SANITIZER", value)
    assert isinstance(Driver(smollm2_path, **SETTINGS).engine._runner, KVSanitizer) == is_on
