"""Prompts that share tokens inside a block, and what is asked of all of them."""

from collections.abc import Callable

import pytest

from octavo.core.request import Status
from octavo.core.step import StepPlan
from tests.support.scheduling import Harness

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
GROUPS = pytest.mark.parametrize("num_groups", [1, 2])
SYSTEM = list(range(341))
SIZE = 16


def question(number: int, length: int = 7) -> list[int]:
    """One that no other question begins as."""
    return [500 + number, *(400 + i for i in range(length - 1))]


def large(depth: int = 1, num_groups: int = 1, **given: int) -> Harness:
    settings = {"num_blocks": 1200 * num_groups, "max_num_seqs": 40, "max_num_batched_tokens": 256} | given
    return Harness(block_size=SIZE, depth=depth, num_groups=num_groups, **settings)


def small(**settings: object) -> Harness:
    return Harness(**{"num_blocks": 64, "max_num_batched_tokens": 64} | settings)  # type: ignore[arg-type]


def num_prompt_tokens_computed(harness: Harness) -> int:
    """Tokens that plans computed, without the one that each sequence computes for each token it decodes."""
    num_decoded = sum(request.num_output_tokens - 1 for request in harness.requests)
    return sum(plan.num_tokens for plan in harness.runner.plans) - num_decoded


def check(harness: Harness) -> None:
    """All have ended by themselves, with the answers that each has alone."""
    for request in harness.requests:
        assert request.status is Status.LENGTH
        harness.check_answer(request)


def ask(harness: Harness, prompt: list[int], **params: object) -> int:
    """Tokens of this prompt that the cache had, when it is asked alone."""
    request = harness.add(prompt, 1, **params)  # type: ignore[arg-type]
    harness.run()
    harness.check_answer(request)
    assert request.num_cached_tokens is not None
    return request.num_cached_tokens


def fail_once(harness: Harness, when: Callable[[StepPlan], bool]) -> list[StepPlan]:
    failed: list[StepPlan] = []

    def fails(plan: StepPlan) -> None:
        if not failed and when(plan):
            failed.append(plan)
            raise RuntimeError("injected once")

    harness.runner.fails = fails
    return failed
