"""Every mechanism on against off: what a request gets is bit for bit the same (promise 1), and what transformers says.

One mix of requests (greedy, seeded, penalties, several choices, logprobs, shared prefixes) is run one at a time in a
large pool without prefix cache; then with each mechanism forced, by settings, on the same mix. B19 is here too.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler_types import ADMISSION_QUANTILE
from octavo.engine.messages import EngineStats
from tests.support.driving import Answer, Driver, Job, all_bits, at_steps, greedy_params, run_apart
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.oracle import check_same_as_reference
from tests.support.parity import random_ids

LARGE = {"block_size": 4, "num_blocks": 600, "max_num_seqs": 64, "max_model_len": 256}
SMALL = {**LARGE, "num_blocks": 60, "max_model_len": 200}
NO_CACHE = {"enable_prefix_caching": False}
SWAP = {"preemption_mode": "swap", "swap_space": 0.01}


def mixed_jobs() -> list[Job]:
    """18 requests: prompts of 1 to 120 tokens, half of them with a prefix in common."""
    common = random_ids(48, RAND_VOCAB, seed=100)
    lengths = [1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 40, 47, 64, 90, 101, 120]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.0, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"temperature": 0.7, "seed": 6, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "n": 2},
    ]
    jobs = []
    for index, length in enumerate(lengths):
        own = random_ids(length, RAND_VOCAB, seed=index)
        prompt = (common[: length // 2] + own)[:length] if index % 2 else own
        params = SamplingParams(max_tokens=12 + index, ignore_eos=True, logprobs=2, **kinds[index % len(kinds)])
        jobs.append(Job(prompt, params))
    return jobs


JOBS = mixed_jobs()


def together(driver: Driver) -> list[list[Answer]]:
    return driver.run(JOBS)


def at_random_steps(driver: Driver) -> list[list[Answer]]:
    random = Random(1)
    return driver.run(at_steps(JOBS, [random.randrange(40) for _ in JOBS]))


def in_reverse(driver: Driver) -> list[list[Answer]]:
    return driver.run(JOBS[::-1])[::-1]


def twice(driver: Driver) -> list[list[Answer]]:
    """The second answers, all of whose prompts are in the cache."""
    driver.run(JOBS)
    return driver.run(JOBS)


Way = tuple[dict[str, Any], Callable[[Driver], list[list[Answer]]], Callable[[EngineStats], bool]]


def any_stats(_: EngineStats) -> bool:
    return True


def preempted(stats: EngineStats) -> bool:
    return stats.num_preemptions > 0


def hardly_preempted(stats: EngineStats) -> bool:
    return stats.num_preemptions < 5


def hit(stats: EngineStats) -> bool:
    return stats.prefix_hits > 0


def swapped(stats: EngineStats) -> bool:
    return stats.num_swaps > 0 and stats.swapped_in_blocks > 0 and stats.num_swapped_blocks == 0


WAYS: dict[str, Way] = {
    "together": (LARGE | NO_CACHE, together, any_stats),
    "at random steps": (LARGE | NO_CACHE, at_random_steps, any_stats),
    "in reverse": (LARGE | NO_CACHE, in_reverse, any_stats),
    "chunks of 16": (LARGE | NO_CACHE | {"max_num_seqs": 16, "max_num_batched_tokens": 16}, together, any_stats),
    "chunks of 3, three rows": (LARGE | {"max_num_seqs": 3, "max_num_batched_tokens": 3}, at_random_steps, any_stats),
    "prefix cache": (LARGE, together, hit),
    "prefix cache, warm": (LARGE, twice, lambda stats: stats.prefix_hits > stats.prefix_queries / 3),
    "blocks of 16": (LARGE | {"block_size": 16}, twice, hit),
    "blocks of 1": (LARGE | {"block_size": 1}, twice, hit),
    "preempted": (SMALL | NO_CACHE, together, preempted),
    "looking ahead": (SMALL | NO_CACHE | {"admission_quantile": ADMISSION_QUANTILE}, together, hardly_preempted),
    "swapped": (SMALL | NO_CACHE | SWAP, together, swapped),
    "swapped, host tier": (SMALL | SWAP | {"num_blocks": 52, "prefix_cache_on_host": True}, twice, swapped),
    "preempted, cached, small chunks": (
        SMALL | {"max_num_seqs": 24, "max_num_batched_tokens": 24},
        at_random_steps,
        lambda stats: preempted(stats) and hit(stats),
    ),
}


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one layer group, and one with six, five of which have a window of 24 tokens."""
    return rand_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def alone(model: Path) -> list[list[Any]]:
    """The answers that all others must equal: one request at a time, nothing cached, chunk or preempted."""
    return all_bits(run_apart(Driver(model, checks=False, **grown(model, LARGE | NO_CACHE)), JOBS))


def grown(model: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """About as much room: a sequence takes six times as many blocks where there are six layer groups, but a third of
    that where steps are small, since it gives back what is behind the windows."""
    times = (2 if "max_num_batched_tokens" in settings else 6) if "gemma3" in model.name else 1
    return settings | {"num_blocks": settings["num_blocks"] * times}


@pytest.mark.parametrize("way", WAYS)
def test_bit_for_bit(way: str, model: Path, alone: list[list[Any]]) -> None:
    settings, run, is_proof = WAYS[way]
    driver = Driver(model, checks=settings["num_blocks"] < 100, **grown(model, settings))
    assert all_bits(run(driver)) == alone
    assert is_proof(driver.stats), "the mechanism was not at work: change the settings of this way"


@pytest.fixture(scope="module")
def alone_on_reference(rand: Path) -> list[list[Any]]:
    return all_bits(run_apart(Driver(rand, checks=False, backend="reference", **LARGE, **NO_CACHE), JOBS))


@pytest.mark.parametrize("way", ["chunks of 3, three rows", "preempted, cached, small chunks"])
def test_bit_for_bit_on_the_reference_back_end(way: str, rand: Path, alone_on_reference: list[list[Any]]) -> None:
    settings, run, is_proof = WAYS[way]
    driver = Driver(rand, checks=False, backend="reference", **settings)
    answers = run(driver)
    assert is_proof(driver.stats)
    assert all_bits(answers) == alone_on_reference


def test_answers_are_all_different(alone: list[list[Any]]) -> None:
    """Power check: the answer of one request could be told from that of any other by its logprobs."""
    logprobs = [tuple(choices[0][1][:12]) for choices in alone]
    assert len(set(logprobs)) == len(logprobs)


@pytest.mark.parametrize(("backend", "share"), [("cpu", 1), ("reference", 4)])
def test_greedy_answers_are_those_of_transformers(backend: str, share: int, model: Path) -> None:
    """B19's prompts: 24 of 1 to 120 tokens, 40 tokens out, all at once through chunks and cache. The reference back end
    is slow, and its kernels are those that the others are held to: it gets every fourth prompt."""
    prompts = [random_ids(1 + 119 * i // 23, RAND_VOCAB, seed=i) for i in range(24)][share - 1 :: share]
    driver = Driver(model, checks=False, backend=backend, **grown(model, LARGE | {"max_num_batched_tokens": 64}))
    answers = driver.run([Job(prompt, greedy_params(40, logprobs=2)) for prompt in prompts])
    check_same_as_reference(model, prompts, [choices[0] for choices in answers])
