"""B13, B14: several choices of one request, and seeds."""

from pathlib import Path
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.llm import LLM
from tests.support.driving import Driver, Job, all_bits, greedy_params
from tests.support.models import RAND_VOCAB
from tests.support.parity import random_ids

PROMPT = random_ids(20, RAND_VOCAB, seed=20)
SETTINGS: dict[str, Any] = {"block_size": 4, "num_blocks": 200, "max_model_len": 256, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def driver(rand: Path) -> Driver:
    return Driver(rand, **SETTINGS)


def drawn(max_tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, max_tokens=max_tokens, **({"ignore_eos": True} | more))


def test_b13_four_choices_each_once_and_the_same_again(driver: Driver) -> None:
    eos = max(driver.tokenizer.eos_token_ids)
    params = drawn(30, n=4, seed=7, ignore_eos=False, logit_bias={eos: 9.0})
    runs = [driver.run([Job(PROMPT, params)])[0] for _ in range(2)]
    first, second = ([choice.bits for choice in choices] for choices in runs)
    assert first == second
    assert len({tuple(choice.token_ids) for choice in runs[0]}) == 4
    assert len({len(choice.token_ids) for choice in runs[0]}) > 1  # power check: they end at different steps
    for choice in runs[0]:
        assert choice.finish_reason == ("length" if len(choice.token_ids) == 30 else "stop")
        assert choice.text == driver.tokenizer.decode(choice.token_ids)


def test_b13_streamed_choices_equal_whole_ones(rand: Path) -> None:
    llm = LLM(str(rand), **SETTINGS)
    eos = max(llm.get_tokenizer().eos_token_ids)
    params = drawn(30, n=4, seed=7, ignore_eos=False, logit_bias={eos: 9.0})
    (whole,) = llm.generate([PROMPT], params)
    assert [output.index for output in whole.outputs] == [0, 1, 2, 3]
    texts, endings = [""] * 4, [0] * 4
    for delta in llm.stream(PROMPT, params):
        assert not endings[delta.index], "news of a choice that has ended"
        texts[delta.index] += delta.text
        endings[delta.index] += delta.finish_reason is not None
    assert texts == [output.text for output in whole.outputs]
    assert endings == [1] * 4
    assert llm.get_metrics().num_active_blocks == 0


def test_b13_more_choices_than_rows_run_in_turns(driver: Driver) -> None:
    """DECISION D3."""
    (choices,) = driver.run([Job(PROMPT, drawn(10, n=11, seed=7))])
    (few,) = driver.run([Job(PROMPT, drawn(10, n=4, seed=7))])
    assert [choice.bits for choice in choices[:4]] == [choice.bits for choice in few]
    assert len({tuple(choice.token_ids) for choice in choices}) == 11
    with pytest.raises(InvalidRequestError, match="n must be between 1 and 64, got 65"):
        drawn(10, n=65)


def test_b13_greedy_choices_are_equal(driver: Driver) -> None:
    ((one,), four) = driver.run([Job(PROMPT, greedy_params(10, logprobs=1, n=n)) for n in (1, 4)])
    assert [choice.bits for choice in four] == [one.bits] * 4


def test_b14_a_seed_gives_the_same_wherever_it_stands(driver: Driver) -> None:
    """(i), (ii), (iv): alone, beside seven others first or last in the batch, in a row, beside another seed."""
    seeded = {seed: Job(PROMPT, drawn(20, seed=seed, logprobs=1)) for seed in (5, 6)}
    free = [Job(PROMPT, drawn(20)) for _ in range(7)]
    ((alone,),) = all_bits(driver.run([seeded[5]]))
    assert all_bits(driver.run([seeded[5], *free]))[0] == [alone]
    assert all_bits(driver.run([*free, seeded[5]]))[-1] == [alone]
    in_a_row = [all_bits(driver.run([seeded[seed]]))[0][0] for seed in (5, 5, 6, 5)]
    assert in_a_row[:2] == [alone, alone]
    assert in_a_row[3] == alone
    assert in_a_row[2] != alone
    assert all_bits(driver.run([seeded[5], seeded[6]])) == [[alone], [in_a_row[2]]]


def test_b14_without_a_seed_answers_differ_also_after_a_restart(rand: Path) -> None:
    """(iii)"""
    outputs = []
    for _ in range(2):
        answers = Driver(rand, **SETTINGS).run([Job(PROMPT, drawn(20)) for _ in range(10)])
        outputs.append({tuple(choice.token_ids) for (choice,) in answers})
    assert min(map(len, outputs)) >= 9
    assert outputs[0].isdisjoint(outputs[1])


def test_b14_the_seed_of_the_engine_repeats_a_whole_run(rand: Path) -> None:
    runs = [all_bits(Driver(rand, seed=3, **SETTINGS).run([Job(PROMPT, drawn(20))] * 3)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


@pytest.mark.parametrize("seed", [0, 2**31, 2**63 - 1])
def test_b14_seeds_at_the_ends_of_the_range_work(seed: int, driver: Driver) -> None:
    first, second = (driver.run([Job(PROMPT, drawn(8, seed=seed))]) for _ in range(2))
    assert all_bits(first) == all_bits(second)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "5"])
def test_b14_other_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(InvalidRequestError, match="seed must be") as error:
        drawn(8, seed=seed)
    assert error.value.param == "seed"
