"""Token ids from outside are refused with one sentence, wherever they come in."""

from collections.abc import Callable
from typing import Any

import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.core.token_ids import check_token_ids

REFUSALS: dict[str, tuple[list[Any], str]] = {
    "too large": ([1, 10, 2], "ids holds token id 10, but the vocabulary has ids 0 to 9"),
    "negative": ([3, -1], "ids holds token id -1, but the vocabulary has ids 0 to 9"),
    "truth": ([1, True], "ids must hold whole numbers only, got True"),
    "text": (["1"], "ids must hold whole numbers only, got '1'"),
    "fraction": ([1.0], "ids must hold whole numbers only, got 1.0"),
    "more digits than Python prints": (
        [10**5000],
        "ids holds token id a number of 16610 bits, but the vocabulary has ids 0 to 9",
    ),
}


@pytest.mark.parametrize(("token_ids", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(token_ids: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        check_token_ids("ids", token_ids, 10)
    assert (str(refusal.value), refusal.value.param) == (message, "ids")


def test_what_is_in_the_vocabulary_passes() -> None:
    for token_ids in ([], [0, 9], (5,), {3: 0.5}):
        check_token_ids("ids", token_ids, 10)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("stop_token_ids", lambda token_id: SamplingParams(stop_token_ids=[token_id])),
        ("allowed_token_ids", lambda token_id: SamplingParams(allowed_token_ids=[token_id])),
        ("logit_bias", lambda token_id: SamplingParams(logit_bias={token_id: 1.0})),
    ],
)
def test_the_ids_of_params(name: str, make: Callable[[Any], SamplingParams]) -> None:
    """Checked as far as can be when they are made, and against the vocabulary when that is known."""
    make(9).check_vocabulary(10)
    with pytest.raises(InvalidRequestError, match=f"{name} holds token id 10, but the vocabulary has ids 0 to 9"):
        make(10).check_vocabulary(10)
    with pytest.raises(InvalidRequestError, match=f"{name} holds token id -1, but there is none below 0"):
        make(-1)
    with pytest.raises(InvalidRequestError, match=f"{name} must hold whole numbers only, got True"):
        make(True)
