"""``LLM`` in this process, on a small random model."""

import pytest

from octavo import LLM, BeamSearchParams, InvalidRequestError, SamplingParams, TimedOutError
from tests.support.models import rand_model
from tests.support.slow_tokenizer import encode_slowly

PROMPTS = ([5, 6, 7], [8, 9, 10, 11])


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(rand_model(tmp_path_factory.mktemp("rand"))), num_blocks=64)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def test_streams_read_in_turns_lose_nothing(llm: LLM) -> None:
    expected = [output.outputs[0].token_ids for output in llm.generate(list(PROMPTS), greedy(6))]
    streams = [llm.stream(prompt, greedy(6)) for prompt in PROMPTS]
    received: list[list[int]] = [[], []]
    for turn in range(12):
        received[turn % 2] += next(streams[turn % 2]).token_ids
        if turn == 3:
            llm.generate([1, 2], greedy(4))
    assert received == expected
    assert [list(stream) for stream in streams] == [[], []]


def test_a_closed_stream_is_aborted(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], greedy(50))
    next(stream)
    assert llm.get_metrics().num_running == 1
    stream.close()
    assert llm.get_metrics().num_running == 0


def test_one_prompt_that_can_never_run_ends_the_call_and_leaves_nothing(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.generate([[1, 2, 3], []], greedy(50))
    metrics = llm.get_metrics()
    assert (metrics.num_running, metrics.num_waiting, metrics.num_active_blocks) == (0, 0, 0)


def test_an_empty_conversation_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="messages"):
        llm.chat([])


def test_without_params_max_tokens_gives_way_to_the_room(llm: LLM) -> None:
    """Spec D2: a default is shortened, a number that the caller gave is not."""
    prompt = [5, 6, 7, 8] * (llm._engine.limits.max_model_len // 4 - 1)
    for output in llm.generate([prompt, prompt]):
        assert 1 <= len(output.outputs[0].token_ids) <= 4
    assert 1 <= sum(len(delta.token_ids) for delta in llm.stream(prompt)) <= 4
    for given in (greedy(5), SamplingParams()):
        with pytest.raises(InvalidRequestError, match="for the output"):
            llm.generate(prompt, given)


def test_a_call_whose_time_is_over_raises_and_leaves_nothing(llm: LLM) -> None:
    params = SamplingParams(n=3, max_tokens=900, ignore_eos=True, seed=1)
    with pytest.raises(TimedOutError, match=r"is not finished after .* may take 0.05 s"):
        llm.generate(list(PROMPTS), params, timeout=0.05)
    with pytest.raises(TimeoutError):
        llm.beam_search(PROMPTS[0], BeamSearchParams(2, 500, ignore_eos=True), timeout=0.01)
    stream = llm.stream(PROMPTS[0], greedy(900), timeout=0.2)
    next(stream)
    with pytest.raises(TimedOutError):
        list(stream)
    metrics = llm.get_metrics()
    assert (metrics.num_running, metrics.num_waiting, metrics.num_active_blocks) == (0, 0, 0)
    assert llm.generate(PROMPTS[0], greedy(3), timeout=60)[0].finished


def test_the_time_for_tokenizing_counts(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    encode_slowly(llm.get_tokenizer(), 0.3, monkeypatch)
    with pytest.raises(TimedOutError, match=r"may take 0\.2 s"):
        llm.generate("a", greedy(1), timeout=0.2)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon"])
def test_a_timeout_that_is_none_is_refused(llm: LLM, timeout: float) -> None:
    with pytest.raises(InvalidRequestError, match="timeout must be more than 0 seconds"):
        llm.generate(PROMPTS[0], timeout=timeout)
