"""``cache_salt`` and ``cache_open_tokens`` from Python."""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import pytest

from octavo import LLM, BeamSearchParams, InvalidRequestError, SamplingParams
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

PROMPT = random_ids(60, RAND_VOCAB, seed=1)
GREEDY = SamplingParams(max_tokens=2, temperature=0.0)
BEAMS = BeamSearchParams(beam_width=2, max_tokens=2)
TALKS = [
    [{"role": "system", "content": "Say what you know, and no more."}, {"role": "user", "content": words}]
    for words in ("where is it?", "perhaps here?")
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(rand_model(tmp_path_factory.mktemp("rand"))), num_blocks=120, max_model_len=200, max_num_seqs=8)


def generate(llm: LLM, **fields: Any) -> int:
    (output,) = llm.generate(PROMPT, GREEDY, **fields)
    return output.num_cached_tokens


def stream(llm: LLM, **fields: Any) -> int:
    return [delta.num_cached_tokens for delta in llm.stream(PROMPT, GREEDY, **fields)][-1]


def search(llm: LLM, **fields: Any) -> int:
    """What a beam search finds is told by the counter."""
    before = llm.get_metrics().prefix_hits
    llm.beam_search([PROMPT], BEAMS, **fields)
    return llm.get_metrics().prefix_hits - before


@pytest.mark.parametrize("ask", [generate, stream, search])
def test_who_finds_what(llm: LLM, ask: Callable[..., int]) -> None:
    llm.reset_prefix_cache()
    assert ask(llm, cache_salt="a", cache_open_tokens=21) == 0
    assert ask(llm, cache_salt="b", cache_open_tokens=21) == 21
    assert ask(llm, cache_salt="c") == 0
    assert ask(llm, cache_salt="a", cache_open_tokens=21) == 59
    assert ask(llm) == 21


def test_an_open_system_message(llm: LLM) -> None:
    llm.reset_prefix_cache()
    first, second = [llm.get_tokenizer().apply_chat_template(talk) for talk in TALKS]
    num_system = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    for salt, expected in (("a", [0, num_system]), ("b", [num_system, num_system])):
        found = [llm.chat(talk, GREEDY, cache_salt=salt, cache_open_tokens="system") for talk in TALKS]
        assert [output.num_cached_tokens for (output,) in found] == expected
    both = llm.chat(TALKS, GREEDY, cache_salt="c", cache_open_tokens="system")
    assert [output.num_cached_tokens for output in both] == [num_system, num_system]
    assert next(output.num_cached_tokens for output in llm.chat(TALKS, GREEDY, cache_salt="d")) == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"cache_salt": ["a"]}, "cache_salt"),
        ({"cache_salt": "a", "cache_open_tokens": -1}, "cache_open_tokens"),
        ({"cache_salt": "a", "cache_open_tokens": 61}, "cache_open_tokens"),
        ({"cache_salt": "a", "cache_open_tokens": "system"}, "cache_open_tokens"),
        ({"cache_salt": "a", "cache_open_tokens": None}, "cache_open_tokens"),
        ({"cache_open_tokens": 5}, "cache_open_tokens"),
    ],
)
@pytest.mark.parametrize("ask", [generate, stream, search])
def test_what_makes_no_sense_is_refused(llm: LLM, ask: Callable[..., int], fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ask(llm, **fields)
    assert caught.value.param == param
    assert llm.get_metrics().num_running == 0


def test_a_chat_is_refused_too(llm: LLM) -> None:
    bad: list[dict[str, Any]] = [{"cache_open_tokens": "system"}, {"cache_salt": "a", "cache_open_tokens": "user"}]
    for fields in bad:
        with pytest.raises(InvalidRequestError, match="cache_open_tokens"):
            llm.chat(TALKS, GREEDY, **fields)
