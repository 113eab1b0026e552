"""``LLM.pin``, ``unpin`` and ``pins``."""

from collections.abc import Iterator

import pytest

from octavo.core.beam_search import BeamSearchParams
from octavo.core.errors import InvalidRequestError
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingParams
from octavo.llm import LLM
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, logprobs=2, ignore_eos=True)
HEAD = random_ids(70, RAND_VOCAB, seed=1)
"""Four blocks and six tokens."""
QUESTIONS = [HEAD + random_ids(9, RAND_VOCAB, seed=seed) for seed in range(2, 6)]
OTHERS = [random_ids(150, RAND_VOCAB, seed=seed) for seed in range(10, 16)]


@pytest.fixture
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(str(rand_model(tmp_path_factory.mktemp("rand"))), num_blocks=24, threads=1) as opened:
        yield opened


def test_pinned_bit_for_bit(llm: LLM) -> None:
    """Answers and logprobs are those of an engine without pins, of one whose cache has lost the prefix."""

    def ask() -> list[object]:
        outputs = [(llm.generate(other, PARAMS), llm.generate(each, PARAMS)[0]) for each, other in cases]
        return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for _, output in outputs]

    cases = list(zip(QUESTIONS, OTHERS[:4], strict=True))
    plain = ask()
    llm.reset_prefix_cache()
    pin = llm.pin(HEAD, ttl=3600)
    assert (pin.num_tokens, pin.num_blocks) == (64, 4)
    for other in OTHERS:
        llm.generate(other, PARAMS)
    assert ask() == plain
    llm.generate(OTHERS, PARAMS)
    assert llm.generate(QUESTIONS[0], PARAMS)[0].num_cached_tokens >= 64
    assert llm.get_metrics().num_pinned_blocks == 4
    assert llm.pins() == [pin]
    assert llm.unpin(pin.pin_id)
    assert not llm.unpin(pin.pin_id)
    assert llm.pins() == []
    llm.generate(OTHERS, PARAMS)
    assert llm.generate(QUESTIONS[0], PARAMS)[0].num_cached_tokens < 64


def test_a_conversation_and_the_quota(llm: LLM) -> None:
    pin = llm.pin([{"role": "system", "content": "Answer in as few words as you can, and be kind."}])
    assert pin.expires_at is None
    with pytest.raises(InvalidRequestError, match="pin_quota"):
        llm.pin(OTHERS[0])
    with pytest.raises(InvalidRequestError, match="whole blocks of 16 tokens"):
        llm.pin([1, 2, 3])
    assert llm.pins() == [pin]
    assert llm.get_metrics().pins_refused == {"quota": 1, "short": 1}


def test_retention_of_a_beam_search(llm: LLM) -> None:
    llm.beam_search([QUESTIONS[0]], BeamSearchParams(2, 4), retention=Retention(80, duration=3600))
    for other in OTHERS:
        llm.generate(other, PARAMS)
    assert llm.generate(QUESTIONS[0], PARAMS)[0].num_cached_tokens >= 64


def test_retention(llm: LLM) -> None:
    """What is of a higher priority outlives what came later, and answers are the same, bit for bit."""
    (expected,) = llm.generate(QUESTIONS[0], PARAMS)
    llm.reset_prefix_cache()
    llm.generate(QUESTIONS[0], PARAMS, retention=Retention(80, duration=3600))
    for other in OTHERS:
        llm.generate(other, PARAMS)
    (kept,) = llm.generate(QUESTIONS[0], PARAMS)
    assert kept.num_cached_tokens >= 64
    assert kept.outputs == expected.outputs
    llm.reset_prefix_cache()
    llm.generate(QUESTIONS[0], PARAMS)
    for other in OTHERS:
        llm.generate(other, PARAMS)
    assert llm.generate(QUESTIONS[0], PARAMS)[0].num_cached_tokens < 64
    with pytest.raises(InvalidRequestError, match="retention must be Retention, got 80"):
        llm.generate(QUESTIONS[0], PARAMS, retention=80)  # type: ignore[arg-type]
