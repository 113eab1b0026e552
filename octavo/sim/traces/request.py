"""What every format says of a request."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

MAX_LENGTH = 10_000_000
"""Tokens; more is no length that any model has."""


class BadTraceLineError(ValueError):
    """What is wrong with one line, in words that follow its number."""


class TracedRequest(NamedTuple):
    """One request. ``seconds``: since the trace began. ``prompt``, ``output``: tokens; ``max_tokens``: what it asked
    for at most, if that is known.

    ``blocks`` names the contents of its leading blocks of ``block_size`` tokens, the last of them perhaps partly
    filled: equal names are equal tokens after equal tokens. They may go on past the prompt, into the answer. None of
    them: nobody knows what it held, so it shares nothing.
    """

    seconds: float
    prompt: int
    output: int
    max_tokens: int | None = None
    blocks: Sequence[int] = ()
    block_size: int = 0
    tenant: str = ""


def asking(requests: Iterable[TracedRequest], max_tokens: int | None, max_model_len: int) -> Iterator[TracedRequest]:
    """The same: each asks for what the trace says that it did, else for ``max_tokens`` (None: for what it got), or for
    the room left."""
    for request in requests:
        wanted = max_tokens if request.max_tokens is None else request.max_tokens
        yield request if wanted is None else request._replace(max_tokens=min(wanted, max_model_len - request.prompt))


def check_lengths(prompt: int, output: int, names: tuple[str, str]) -> None:
    """``names``: of the two, as the trace has them.

    Raises:
        BadTraceLineError: one is no length.
    """
    for name, length in zip(names, (prompt, output), strict=True):
        if length < 1:
            raise BadTraceLineError(f"{name} is {length!r:.40}; a request has at least one token")
        if length > MAX_LENGTH:
            raise BadTraceLineError(f"{name} is {length!r:.40}, above the {MAX_LENGTH} tokens that a trace may have")
