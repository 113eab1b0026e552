"""B06, B08, B27 (its part): prompts found in the cache, blocks not yet computed, prompt logprobs."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.driving import Answer, Driver, Job, greedy_params
from tests.support.models import RAND_VOCAB
from tests.support.parity import random_ids

SETTINGS: dict[str, Any] = {"block_size": 4, "num_blocks": 200, "max_model_len": 200}


@pytest.fixture(scope="module")
def cold(rand: Path) -> Driver:
    """The engine without a prefix cache, whose answers are right."""
    return Driver(rand, enable_prefix_caching=False, **SETTINGS)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 17])
def test_b06_whole_prompt_in_the_cache(length: int, rand: Path, cold: Driver) -> None:
    """DECISION D29: cached tokens are counted one by one and leave at least the last one to compute."""
    prompt = random_ids(length, RAND_VOCAB, seed=length)
    params = greedy_params(10, logprobs=3)
    right = cold.ask(prompt, params)
    driver = Driver(rand, **SETTINGS)
    cached = length - 1
    for expected in (0, cached, cached):
        answer = driver.ask(prompt, params)
        assert answer.bits == right.bits
        assert answer.num_cached_tokens == expected
    fresh = Driver(rand, **SETTINGS)
    twins = fresh.run([Job(prompt, params), Job(prompt, params)])
    assert [twin.bits for (twin,) in twins] == [right.bits, right.bits]
    for engine in (driver, Driver(rand, **SETTINGS)):
        (choices,) = engine.run([Job(prompt, greedy_params(10, logprobs=3, n=2))])
        assert [choice.bits for choice in choices] == [right.bits, right.bits]


PROMPT = random_ids(60, RAND_VOCAB, seed=60)
SMALL_STEPS = SETTINGS | {"max_num_seqs": 8, "max_num_batched_tokens": 8}
PREFILL_STEPS = 8
"""60 tokens, 8 a step."""


def second_prompt(form: str) -> list[int]:
    return PROMPT if form == "same" else PROMPT[:32] + random_ids(28, RAND_VOCAB, seed=61)


@pytest.mark.parametrize("form", ["same", "first 32 tokens"])
@pytest.mark.parametrize("closes", [True, False], ids=["first is closed", "first goes on"])
def test_b08_a_twin_at_every_step_of_the_prefill(closes: bool, form: str, rand: Path, cold: Driver) -> None:
    """The first request is cancelled after each possible number of steps (seven of them strictly inside its prefill),
    or goes on; the second comes at once and must read nothing that was not computed."""
    params = greedy_params(10, logprobs=2)
    right_first, right = cold.ask(PROMPT, params), cold.ask(second_prompt(form), params)
    inside = 0
    for num_steps in range(PREFILL_STEPS + 3):
        driver = Driver(rand, **SMALL_STEPS)
        first = driver.add(PROMPT, params)
        for _ in range(num_steps):
            driver.step()
        inside += 0 < num_steps < PREFILL_STEPS and not driver.answers[first][0].token_ids
        if closes:
            driver.engine.abort(first)
        second = driver.ask(second_prompt(form), params)
        assert second.bits == right.bits
        if closes:
            assert driver.answers[first][0].finish_reason == "abort"
        else:
            assert driver.answers[first][0].bits == right_first.bits
    assert inside == PREFILL_STEPS - 1  # power check


def test_b08_landed_blocks_of_a_cancelled_request_are_used(rand: Path) -> None:
    driver = Driver(rand, **SMALL_STEPS)
    first = driver.add(PROMPT, greedy_params(10))
    for _ in range(3):
        driver.step()
    driver.engine.abort(first)
    assert driver.ask(PROMPT, greedy_params(10)).num_cached_tokens == 24


def test_b08_a_twin_waits_instead_of_computing_again(rand: Path) -> None:
    driver = Driver(rand, **SMALL_STEPS)
    twins = driver.run([Job(PROMPT, greedy_params(10)), Job(PROMPT, greedy_params(10), at_step=2)])
    assert [twin.num_cached_tokens for (twin,) in twins] == [0, len(PROMPT) - 1]


def check_prompt_logprobs(answer: Answer, prompt: list[int], right: Answer) -> None:
    entries = answer.prompt_logprobs
    assert entries[0] is None
    assert [entry and entry.token_id for entry in entries] == [None, *prompt[1:]]
    assert entries == right.prompt_logprobs
    assert answer.bits == right.bits


def test_b27_prompt_logprobs_of_a_cached_prompt(rand: Path, cold: Driver) -> None:
    prompt = random_ids(41, RAND_VOCAB, seed=41)
    longer = prompt + random_ids(10, RAND_VOCAB, seed=42)
    plain, asking = greedy_params(5, logprobs=3), greedy_params(5, logprobs=3, prompt_logprobs=3)
    right, right_longer = cold.ask(prompt, asking), cold.ask(longer, asking)
    driver = Driver(rand, max_num_seqs=16, max_num_batched_tokens=16, **SETTINGS)
    driver.ask(prompt, plain)
    for _ in range(2):
        check_prompt_logprobs(driver.ask(prompt, asking), prompt, right)
    check_prompt_logprobs(driver.ask(longer, asking), longer, right_longer)
    jobs = [Job(prompt, greedy_params(5, logprobs=3, prompt_logprobs=3, n=2)), Job(prompt, plain)]
    (first, second), (neighbour,) = driver.run(jobs)
    check_prompt_logprobs(first, prompt, right)
    assert second.bits == neighbour.bits == right.bits
    assert neighbour.num_cached_tokens == 40
