"""Which tokens of a conversation come from its system message alone."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.loading.interface import Tokenizer

_WORDS = ("a", "b")


def num_system_tokens(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], token_ids: Sequence[int]) -> int:
    """How many of the first ``token_ids``, which are those of ``messages``, hold the leading system message and what
    the chat template puts around it; 0 if there is none, or the template cannot show it apart.

    Counted is what two made-up conversations with this system message, each with another word of the user's, have in
    common with the given one. So these tokens follow from the system message, whatever the template does: neither
    what comes after it in ``messages`` nor ``template_kwargs`` can be among them, nor be guessed from them.
    """
    if messages[0]["role"] != "system":
        return 0
    try:
        made_up = [tokenizer.apply_chat_template([messages[0], {"role": "user", "content": word}]) for word in _WORDS]
    except InvalidRequestError:
        return 0
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, zip(token_ids, *made_up, strict=False)))
