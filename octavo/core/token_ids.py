"""The one check of token ids that come from outside: from Python, over HTTP, between processes."""

from collections.abc import Collection
from typing import Any

from octavo.core.errors import InvalidRequestError, shown


def check_token_ids(name: str, token_ids: Collection[Any], vocab_size: int | None = None) -> None:
    """``name``: the field that holds them. ``vocab_size`` None: not known yet.

    Raises:
        InvalidRequestError: one is no whole number, or outside the vocabulary (spec D26).
    """
    if not set(map(type, token_ids)) <= {int}:
        wrong = next(token_id for token_id in token_ids if type(token_id) is not int)
        raise InvalidRequestError(f"{name} must hold whole numbers only, got {shown(wrong)}", name)
    low, high = min(token_ids, default=0), max(token_ids, default=0)
    if vocab_size is not None and (low < 0 or high >= vocab_size):
        outside = shown(low if low < 0 else high)
        raise InvalidRequestError(
            f"{name} holds token id {outside}, but the vocabulary has ids 0 to {vocab_size - 1}", name
        )
    if low < 0:
        raise InvalidRequestError(f"{name} holds token id {shown(low)}, but there is none below 0", name)
