"""B01, B03: preemption by recompute in a pool that is too small, and requests that can never run."""

from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.llm import LLM
from tests.support.driving import Driver, Job, all_bits, greedy_params, run_apart
from tests.support.models import RAND_VOCAB
from tests.support.oracle import check_same_as_reference
from tests.support.parity import random_ids


@pytest.mark.parametrize("caching", [False, True], ids=["no cache", "cache"])
def test_b01_preempted_answers_are_whole(caching: bool, rand: Path) -> None:
    settings: dict[str, Any] = {
        "block_size": 4,
        "max_num_seqs": 4,
        "max_model_len": 64,
        "enable_prefix_caching": caching,
    }
    prompts = [random_ids(length, RAND_VOCAB, seed=length) for length in (10, 11, 13, 14)]
    jobs = [Job(prompt, greedy_params(40, logprobs=2)) for prompt in prompts]
    solo = run_apart(Driver(rand, num_blocks=24, **settings), jobs)
    driver = Driver(rand, num_blocks=24, **settings)
    answers = driver.run(jobs)
    assert driver.stats.num_preemptions >= 1
    assert all_bits(answers) == all_bits(solo)
    check_same_as_reference(rand, prompts, [choices[0] for choices in answers])
    (whole,) = zip(*answers, strict=True)
    for answer, (alone,) in zip(whole, solo, strict=True):
        assert len(answer.token_ids) == 40
        assert answer.finish_reason == "length"
        assert answer.text == alone.text == driver.tokenizer.decode(answer.token_ids)
    assert driver.stats.generation_tokens == 160
    assert driver.stats.prompt_tokens == sum(map(len, prompts))


NEVER = {
    "prompt longer than the pool": (80, 8, r"holds 64 tokens.*88.*80 in the prompt, 8 for"),
    "output longer than the pool": (50, 100, r"holds 64 tokens.*150.*50 in the prompt, 100 for"),
}


@pytest.mark.parametrize("copies", [1, 5])
@pytest.mark.parametrize("case", NEVER)
def test_b03_what_can_never_run_is_refused_and_blocks_nobody(case: str, copies: int, rand: Path) -> None:
    """DECISION D2, D25: refused at once with the numbers; the request beside it and the one after it run."""
    length, max_tokens, message = NEVER[case]
    driver = Driver(rand, block_size=4, num_blocks=16)
    good = [Job(random_ids(8, RAND_VOCAB, seed=seed), greedy_params(8, logprobs=1)) for seed in (1, 2)]
    solo = all_bits(run_apart(driver, good))
    running = driver.add(good[0].prompt, good[0].params)
    driver.step()
    bad = [driver.add(random_ids(length, RAND_VOCAB), greedy_params(max_tokens)) for _ in range(copies)]
    after = driver.add(good[1].prompt, good[1].params)
    driver.finish()
    for request_id in bad:
        (answer,) = driver.answers[request_id]
        (delta,) = answer.deltas
        assert (delta.finish_reason, delta.text, delta.token_ids) == ("error", "", [])
        assert delta.invalid_param == ("prompt" if length > 64 else "max_tokens")
        with pytest.raises(InvalidRequestError, match=message):
            raise InvalidRequestError(delta.error or "")
    assert all_bits([driver.answers[running], driver.answers[after]]) == solo
    assert sum(driver.stats.rejected.values()) == copies


def test_b03_a_prompt_longer_than_a_step_runs_in_chunks(rand: Path) -> None:
    """Case c as it stands here: prompts are always chunked, so a small token budget blocks nothing."""
    driver = Driver(rand, block_size=4, num_blocks=16, max_num_seqs=8, max_num_batched_tokens=8)
    prompt = random_ids(56, RAND_VOCAB)
    answer = driver.ask(prompt, greedy_params(8, logprobs=1))
    check_same_as_reference(rand, [prompt], [answer])
    assert driver.stats.num_steps == 7 + 7


def test_b03_from_python_it_raises_and_the_next_call_works(rand: Path) -> None:
    llm = LLM(str(rand), block_size=4, num_blocks=16)
    prompt = random_ids(8, RAND_VOCAB)
    (before,) = llm.generate([prompt], greedy_params(8))
    with pytest.raises(InvalidRequestError, match="holds 64 tokens") as error:
        llm.generate([prompt, random_ids(80, RAND_VOCAB)], greedy_params(8))
    assert error.value.param == "prompt"
    (again,) = llm.generate([prompt], greedy_params(8))
    assert again.outputs == before.outputs
    assert llm.get_metrics().num_active_blocks == 0


def test_b03_a_pool_that_is_full_to_the_last_slot(rand: Path) -> None:
    """64 slots, 64 tokens: the longest request there can be runs, twice at the same time in turns."""
    driver = Driver(rand, block_size=4, num_blocks=16)
    job = Job(random_ids(40, RAND_VOCAB), SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=0))
    (alone,) = run_apart(driver, [job])
    assert len(alone[0].token_ids) == 24
    assert all_bits(driver.run([job, job])) == all_bits([alone, alone])
