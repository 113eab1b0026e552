"""``LLM.beam_search`` on a small random model: what comes out, what is refused, and what is left behind."""

from typing import Any

import pytest

import octavo
from octavo import LLM, BeamSearchParams, InvalidRequestError, SamplingParams
from tests.support.models import rand_model

PROMPTS = [[5, 6, 7], [8, 9, 10, 11]]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(rand_model(tmp_path_factory.mktemp("rand"))), num_blocks=64, max_num_seqs=8)


def test_sequences_are_whole_and_best_first(llm: LLM) -> None:
    outputs = llm.beam_search(PROMPTS, BeamSearchParams(4, 6, ignore_eos=True))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert len({tuple(sequence.tokens) for sequence in output.sequences}) == 4
        logprobs = [sequence.cum_logprob for sequence in output.sequences]
        assert logprobs == sorted(logprobs, reverse=True)
        for sequence in output.sequences:
            assert sequence.tokens[: len(prompt)] == prompt
            assert len(sequence.tokens) == len(prompt) + 6
            assert sequence.text == llm.get_tokenizer().decode(sequence.tokens)
            assert sequence.finish_reason == "length"


def test_cum_logprob_is_the_sum_of_the_models_logprobs(llm: LLM) -> None:
    (output,) = llm.beam_search([PROMPTS[0]], BeamSearchParams(3, 5, ignore_eos=True))
    for sequence in output.sequences:
        (scored,) = llm.generate(sequence.tokens, SamplingParams(max_tokens=1, prompt_logprobs=0))
        entries = (scored.prompt_logprobs or [])[len(PROMPTS[0]) :]
        total = sum(entry.logprob for entry in entries if entry is not None)
        assert sequence.cum_logprob == pytest.approx(total, abs=1e-9)


def test_one_beam_is_greedy(llm: LLM) -> None:
    (output,) = llm.beam_search(PROMPTS[0], BeamSearchParams(1, 8, ignore_eos=True))
    (greedy,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
    assert output.sequences[0].tokens == PROMPTS[0] + greedy.outputs[0].token_ids


def test_beside_other_requests(llm: LLM) -> None:
    """A stream that is open meanwhile, and more searches than there are rows: the same results."""
    params = BeamSearchParams(4, 6)
    alone = [llm.beam_search([prompt], params)[0] for prompt in PROMPTS]
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    (expected,) = llm.generate(PROMPTS[1], greedy)
    stream = llm.stream(PROMPTS[1], greedy)
    first = next(stream)
    assert llm.beam_search(PROMPTS * 4, params) == alone * 4
    assert first.token_ids + [token for delta in stream for token in delta.token_ids] == expected.outputs[0].token_ids
    assert llm.get_metrics().num_active_blocks == 0


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], BeamSearchParams(2, 4), "prompt"),
        ([1] * 100, BeamSearchParams(8, 100), "beam_width"),
        ([1], BeamSearchParams(9, 4), "beam_width"),
        ([1], BeamSearchParams(2, 4000), "max_tokens"),
        ([1], SamplingParams(), "params"),
        ([1], None, "params"),
    ],
)
def test_what_can_never_run_ends_the_call_and_leaves_nothing(
    llm: LLM, prompt: list[int], params: Any, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        llm.beam_search([[1, 2, 3], prompt], params)
    assert refusal.value.param == param
    metrics = llm.get_metrics()
    assert (metrics.num_running, metrics.num_waiting, metrics.num_active_blocks) == (0, 0, 0)


def test_max_tokens_none_takes_the_room_that_all_beams_have(llm: LLM) -> None:
    (output,) = llm.beam_search([[1, 2, 3]], BeamSearchParams(8, None, ignore_eos=True))
    assert {len(sequence.tokens) for sequence in output.sequences} == {64 // 8 * 16}


def test_names_of_the_package() -> None:
    for name in ("BeamSearchParams", "BeamSearchOutput", "BeamSearchSequence"):
        assert name in octavo.__all__
        assert getattr(octavo, name).__name__ == name
