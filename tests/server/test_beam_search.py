"""``use_beam_search`` over HTTP: what goes with it, what is refused by name, and whole answers of a real engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from octavo import LLM, BeamSearchParams
from tests.server.test_validation import CHAT, COMPLETION, case_id, check_error
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

BEAMS = {"use_beam_search": True, "n": 2}

REFUSED: list[tuple[str, Any]] = [
    ("stream", True), ("temperature", 0.5), ("temperature", 1), ("presence_penalty", 0.1), ("frequency_penalty", -0.1),
    ("repetition_penalty", 1.1), ("stop", "x"), ("stop", ["x"]), ("stop_token_ids", [1]), ("bad_words", ["x"]),
    ("allowed_token_ids", [1]), ("logit_bias", {"1": 1}), ("min_tokens", 1), ("prompt_logprobs", 0), ("n", 65),
    ("length_penalty", 11), ("length_penalty", "long"), ("early_stopping", "sometimes"), ("early_stopping", 1),
    ("use_beam_search", "yes"), ("use_beam_search", 1), ("guided_json", {}), ("top_p", 0), ("seed", -1),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [*REFUSED, ("logprobs", 0), ("best_of", 3)], ids=case_id)
def test_what_cannot_go_with_a_search_is_refused(client: httpx.Client, field: str, value: Any) -> None:
    error = check_error(client.post("/v1/completions", json=COMPLETION | BEAMS | {field: value}))
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(("field", "value"), [*REFUSED, ("logprobs", True)], ids=case_id)
def test_nor_does_it_in_a_chat(client: httpx.Client, field: str, value: Any) -> None:
    error = check_error(client.post("/v1/chat/completions", json=CHAT | BEAMS | {field: value}))
    assert error["param"] == field


@pytest.mark.parametrize("fields", [{"length_penalty": 2.0}, {"early_stopping": True}, {"early_stopping": "never"}])
def test_without_a_search_its_own_fields_are_refused(client: httpx.Client, fields: dict[str, Any]) -> None:
    assert check_error(client.post("/v1/completions", json=COMPLETION | fields))["param"] == next(iter(fields))
    neutral = {"length_penalty": 1.0, "early_stopping": False, "use_beam_search": False}
    assert client.post("/v1/completions", json=COMPLETION | neutral).status_code == 200


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand_model(tmp_path_factory.mktemp("rand"))


@pytest.fixture(scope="module")
def beam_server(model: Path) -> Iterator[ServerProcess]:
    flags = ("--block-size", "4", "--num-blocks", "120", "--max-num-seqs", "8", "--max-num-batched-tokens", "16")
    with running_real_server(model, *flags) as running:
        yield running.wait_ready()


@pytest.fixture
def beams(beam_server: ServerProcess) -> Iterator[httpx.Client]:
    with beam_server.client() as opened:
        yield opened


def test_n_choices_best_first(beams: httpx.Client, model: Path) -> None:
    """The same as in Python; usage counts the prompt once and the tokens that are returned."""
    prompts = [random_ids(12, RAND_VOCAB, seed=seed) for seed in (1, 2)]
    llm = LLM(str(model), num_blocks=400, block_size=4)
    expected = llm.beam_search(prompts, BeamSearchParams(4, 9, length_penalty=0.6, early_stopping="never"))
    neutral = {"temperature": 0, "seed": 5, "top_p": 0.5, "top_k": 3, "stop": [], "logit_bias": {}, "best_of": 4}
    search = {"use_beam_search": True, "n": 4, "length_penalty": 0.6, "early_stopping": "never"}
    fields = {"prompt": prompts, "max_tokens": 9, "return_token_ids": True} | search | neutral
    body = beams.post("/v1/completions", json=fields).raise_for_status().json()
    sequences = [sequence for output in expected for sequence in output.sequences]
    choices = body["choices"]
    assert [choice["index"] for choice in choices] == list(range(8))
    tokens = [choice["prompt_token_ids"] + choice["token_ids"] for choice in choices]
    assert tokens == [sequence.tokens for sequence in sequences]
    assert [choice["finish_reason"] for choice in choices] == [sequence.finish_reason for sequence in sequences]
    for output in expected:
        scores = [each.cum_logprob / (len(each.tokens) - 12) ** 0.6 for each in output.sequences]
        assert scores == sorted(scores, reverse=True)
    assert body["usage"]["prompt_tokens"] == 24
    assert body["usage"]["completion_tokens"] == sum(len(each.tokens) - 12 for each in sequences)


def test_chat(beams: httpx.Client) -> None:
    fields = {"messages": CHAT["messages"], "max_tokens": 5, "use_beam_search": True, "n": 3}
    body = beams.post("/v1/chat/completions", json=fields).raise_for_status().json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert all(choice["message"]["content"] is not None for choice in body["choices"])
    assert body["usage"]["completion_tokens"] <= 15


def test_a_default_length_is_shortened_to_what_all_beams_have_room_for(beams: httpx.Client) -> None:
    """A chat without max_tokens: 120 blocks of 4 tokens for 8 beams are 15 blocks each."""
    fields = {"messages": CHAT["messages"], "use_beam_search": True, "n": 8, "ignore_eos": True}
    usage = beams.post("/v1/chat/completions", json=fields).raise_for_status().json()["usage"]
    assert usage["completion_tokens"] == 8 * (60 - usage["prompt_tokens"])


@pytest.mark.parametrize("fields", [{"n": 9}, {"n": 8, "max_tokens": 100}])
def test_beams_that_can_never_run_at_once(beams: httpx.Client, fields: dict[str, Any]) -> None:
    """More than --max-num-seqs, or more than the pool holds: the field is called as in the request."""
    asked = {"prompt": [1, 2, 3], "use_beam_search": True, "max_tokens": 4} | fields
    assert check_error(beams.post("/v1/completions", json=asked))["param"] == "n"
