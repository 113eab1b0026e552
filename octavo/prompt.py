"""Prompts as callers give them in Python: a text, or token ids of any kind of whole numbers."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from octavo.core.errors import InvalidRequestError

Prompt = str | Sequence[int]


def listed_prompts(prompts: Any) -> list[Any]:
    """One prompt or several as a list of them; anything that can be gone through is taken, arrays too."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | Mapping) or not isinstance(prompts, Iterable):
        raise _not_a_prompt(prompts)
    items: list[Any] = prompts.tolist() if hasattr(prompts, "tolist") else list(prompts)
    return [items] if items and isinstance(items[0], Integral) else items


def as_token_ids(prompt: Any) -> list[int]:
    """Plain ints, whatever whole numbers they were."""
    if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
        raise _not_a_prompt(prompt)
    token_ids = list(prompt)
    if any(isinstance(token_id, bool) for token_id in token_ids):
        raise _not_a_prompt(prompt)
    try:
        return [operator.index(token_id) for token_id in token_ids]
    except TypeError as error:
        raise _not_a_prompt(prompt) from error


def _not_a_prompt(prompt: Any) -> InvalidRequestError:
    return InvalidRequestError(f"a prompt must be a text or a list of token ids, got {prompt!r:.80}", "prompt")
