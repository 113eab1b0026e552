"""Scheduling policies over a real model: they say who goes first, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.core.errors import InvalidRequestError
from tests.support.driving import Driver, greedy_params
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

PROMPTS = [random_ids(length, RAND_VOCAB, seed=length) for length in (40, 7, 61, 23, 40, 90, 12, 33)]
PARAMS = greedy_params(24, logprobs=1)
POLICIES: list[dict[str, Any]] = [{}, {"scheduling_policy": "priority"}, {"scheduling_policy": "fair"}]


@pytest.fixture(scope="module")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


def _standing(number: int, policy: dict[str, Any]) -> dict[str, Any]:
    wanted = {"priority": {"priority": number * 5 % 3}, "fair": {"tenant": "abb"[number % 3]}}
    return wanted.get(policy.get("scheduling_policy", "fcfs"), {})


def test_answers_are_the_same_bit_for_bit_under_every_policy(rand: Path) -> None:
    """In a pool so small that requests pass each other and are preempted."""
    answers, preemptions = [], []
    for policy in POLICIES:
        driver = Driver(rand, block_size=8, num_blocks=26, max_model_len=128, **policy)
        ids = [driver.add(prompt, PARAMS, **_standing(number, policy)) for number, prompt in enumerate(PROMPTS)]
        driver.finish()
        answers.append([driver.answers[request_id][0].bits for request_id in ids])
        preemptions.append(driver.stats.num_preemptions)
    assert all(bits == answers[0] for bits in answers)
    assert min(preemptions) > 0


def test_priorities_in_python(rand: Path) -> None:
    """The times say who was first; a list gives each prompt its own."""
    with LLM(str(rand), num_blocks=40, max_num_seqs=1, scheduling_policy="priority", threads=1) as llm:
        outputs = llm.generate(PROMPTS[:3], SamplingParams(max_tokens=2), priority=[2, 1, 0])
        finished = [output.metrics[0].finished for output in outputs]
        assert finished == sorted(finished, reverse=True)
        assert llm.generate([[1, 2]], SamplingParams(max_tokens=2), priority=7)[0].finished
        with pytest.raises(InvalidRequestError, match="3 prompts need 3 priorities, got 2"):
            llm.generate(PROMPTS[:3], priority=[1, 2])
