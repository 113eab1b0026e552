"""B17: which tokens the penalties count, through the whole engine on SCRIPT-W."""

from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from tests.support.driving import Driver, Job
from tests.support.models import script_w_model

A, G, P, X = (ord(letter) for letter in "agpx")

TABLE: dict[str, tuple[list[int], dict[str, float], list[int]]] = {
    "i presence leaves the prompt out": ([A, X, P], {"presence_penalty": 1.5}, [A, G]),
    "ii repetition counts the prompt": ([A, X, P], {"repetition_penalty": 3.0}, [G]),
    "iii presence counts the output": ([X, P], {"presence_penalty": 1.5}, [A, G]),
    "iv frequency counts each time": ([X, P], {"frequency_penalty": 0.7}, [A, A, G]),
    "vi negative presence promotes": ([X, P], {"presence_penalty": -1.5}, [A, A, A]),
    "vi repetition below 1 promotes": ([G, X, P], {"repetition_penalty": 0.4}, [G]),
}
NEIGHBOURS = {"none": None, "200 zeros": [0] * 200, "200 times a": [A] * 200}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return script_w_model(tmp_path_factory.mktemp("w"), {"p": "a", "a": "a"}, {"p": "g", "a": "g"}).path


@pytest.fixture(scope="module")
def driver(folder: Path) -> Driver:
    return Driver(folder, block_size=4, num_blocks=128)


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("row", TABLE)
def test_b17_penalties(row: str, neighbour: str, driver: Driver) -> None:
    """(i) to (vi), alone and beside the neighbours of (v)."""
    prompt, penalty, expected = TABLE[row]
    params = SamplingParams(temperature=0, max_tokens=len(expected), **penalty)  # type: ignore[arg-type]
    jobs = [Job(prompt, params)]
    beside = NEIGHBOURS[neighbour]
    if beside is not None:
        jobs.insert(0, Job(beside, SamplingParams(temperature=0, max_tokens=8, presence_penalty=1.0)))
    assert driver.run(jobs)[-1][0].token_ids == expected


def test_b17_after_a_cache_hit(driver: Driver) -> None:
    """(vii) A prompt found in the cache is counted, or not, as one that was computed."""
    for prompt, penalty, expected in TABLE.values():
        params = SamplingParams(temperature=0, max_tokens=len(expected), **penalty)  # type: ignore[arg-type]
        padded = [X] * 20 + prompt
        driver.ask(padded, params)
        answer = driver.ask(padded, params)
        assert answer.token_ids == expected
        assert answer.num_cached_tokens == len(padded) - 1


def test_b17_after_a_preemption(folder: Path) -> None:
    """(vii) Four requests in a pool that holds two and a half: each comes back and counts what it had."""
    driver = Driver(folder, block_size=1, num_blocks=24, max_num_seqs=4, enable_prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, frequency_penalty=0.3)
    (alone,) = driver.run([Job([X, P], params)])
    assert {A, G} <= set(alone[0].token_ids[:6])  # power check: the penalty is at work
    answers = driver.run([Job([X, P], params)] * 4)
    assert driver.stats.num_preemptions > 0
    assert [choice.bits for (choice,) in answers] == [alone[0].bits] * 4


@pytest.mark.parametrize(
    ("name", "value"), [("presence_penalty", -2.5), ("frequency_penalty", 2.5), ("repetition_penalty", 0.0)]
)
def test_b17_outside_the_documented_range(name: str, value: float) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(InvalidRequestError, match=f"{name} must be in") as error:
        SamplingParams(**fields)
    assert error.value.param == name
