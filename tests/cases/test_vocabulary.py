"""B52, D18, D26: model rows beyond the tokenizer's ids are never drawn, and ids beyond it never accepted."""

from pathlib import Path
from typing import Any

import pytest
import torch

from octavo.core.sampling_params import SamplingParams
from tests.support.driving import Driver, Job
from tests.support.models import RAND_VOCAB, rand_model, write_chain
from tests.support.parity import random_ids
from tests.support.tokenizer_files import TokenizerOptions, rand_tokenizer

IDS = 500
SETTINGS: dict[str, Any] = {"block_size": 4, "num_blocks": 200, "max_model_len": 200}


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """RAND with a tokenizer of 500 ids and 512 rows."""
    return Driver(rand_model(tmp_path_factory.mktemp("padded"), tokenizer_size=IDS), **SETTINGS)


@pytest.fixture(scope="module")
def tempted(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Row 505 is the best at every step, then row 7."""
    folder = tmp_path_factory.mktemp("tempted")
    logits = torch.zeros(RAND_VOCAB, RAND_VOCAB)
    logits[:, 505], logits[:, 7] = 20.0, 10.0
    write_chain(folder, logits, rand_tokenizer(IDS), TokenizerOptions())
    return Driver(folder, **SETTINGS)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
@pytest.mark.parametrize("which", ["padded", "tempted"])
def test_b52_padded_rows_are_never_drawn(which: str, temperature: float, request: pytest.FixtureRequest) -> None:
    driver: Driver = request.getfixturevalue(which)
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=50, ignore_eos=True, logprobs=20, n=4)
    (choices,) = driver.run([Job(random_ids(10, IDS), params)])
    for choice in choices:
        assert len(choice.token_ids) == 50
        assert max(choice.token_ids) < IDS
        assert max(token_id for entry in choice.logprobs for token_id, _ in entry.top) < IDS
        assert choice.text == driver.tokenizer.decode(choice.token_ids)
        if (which, temperature) == ("tempted", 0.0):
            assert set(choice.token_ids) == {7}
            assert choice.logprobs[0].logprob == pytest.approx(-10.0, abs=0.1)  # raw: over all rows (D9)


PADDED_ID = 505
WITH_PADDED_ID: dict[str, tuple[list[int], dict[str, Any]]] = {
    "prompt": ([1, PADDED_ID, 2], {"prompt_logprobs": 2}),
    "logit_bias": ([1], {"logit_bias": {PADDED_ID: 100.0}}),
    "stop_token_ids": ([1], {"stop_token_ids": [PADDED_ID]}),
    "allowed_token_ids": ([1], {"allowed_token_ids": [5, PADDED_ID]}),
}


@pytest.mark.parametrize("case", WITH_PADDED_ID)
def test_b52_an_id_of_a_padded_row_harms_nobody(case: str, padded: Driver) -> None:
    prompt, more = WITH_PADDED_ID[case]
    neighbour = Job([1, 2, 3], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=1))
    (alone,) = padded.run([neighbour])
    params = SamplingParams(temperature=2.0, seed=2, max_tokens=20, ignore_eos=True, **more)
    (answer,), beside = padded.run([Job(prompt, params), neighbour])
    assert len(answer.token_ids) == 20
    assert max(answer.token_ids) < IDS
    assert beside[0].bits == alone[0].bits
    if case == "prompt":
        assert [entry and entry.token_id for entry in answer.prompt_logprobs] == [None, PADDED_ID, 2]


def test_b52_only_padded_rows_allowed_leaves_nothing_to_draw(padded: Driver) -> None:
    params = SamplingParams(allowed_token_ids=[PADDED_ID])
    neighbour = Job([1, 2, 3], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=1))
    (alone,) = padded.run([neighbour])
    (answer,), beside = padded.run([Job([1], params), neighbour])
    assert answer.finish_reason == "error"
    assert "leave no token to draw" in (answer.deltas[-1].error or "")
    assert beside[0].bits == alone[0].bits


@pytest.mark.parametrize(
    ("prompt", "more", "param"),
    [
        ([RAND_VOCAB], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([1], {"logit_bias": {RAND_VOCAB: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": [RAND_VOCAB]}, "stop_token_ids"),
        ([1], {"allowed_token_ids": [1, RAND_VOCAB]}, "allowed_token_ids"),
    ],
)
def test_d26_ids_that_the_model_has_no_row_for_are_refused(
    prompt: list[int], more: dict[str, Any], param: str, padded: Driver
) -> None:
    ((answer,),) = padded.run([Job(prompt, SamplingParams(**more))])
    (delta,) = answer.deltas
    assert (delta.finish_reason, delta.invalid_param) == ("error", param)
    wrong = -1 if prompt == [-1] else RAND_VOCAB
    assert delta.error == f"{param} holds token id {wrong}, but the vocabulary has ids 0 to 511"


def test_b52_fixture_has_more_rows_than_ids(padded: Driver, tmp_path: Path) -> None:
    """Power check: the same model with all its ids known does draw them."""
    assert padded.tokenizer.vocab_size == IDS
    whole = Driver(rand_model(tmp_path), **SETTINGS)
    params = SamplingParams(temperature=2.0, seed=1, max_tokens=50, ignore_eos=True, n=4)
    (choices,) = whole.run([Job(random_ids(10, IDS), params)])
    assert max(token_id for choice in choices for token_id in choice.token_ids) >= IDS
