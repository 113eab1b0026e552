"""A few beginnings of texts, written to see whether a grammar can be followed in time."""

import random
import time
from typing import TYPE_CHECKING

import numpy as np

from octavo.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher

NUM_TEXTS = 3
NUM_BYTES = 40
"""Of each: where a grammar is costly, it mostly is so at its beginning."""

MAX_TOKEN_SECONDS = 0.06
"""Of a thread's time, for a byte."""

OPENING = b'{["'
"""What leads further into a JSON text."""


def try_texts(beginning: "LLMatcher") -> None:
    """``beginning``: a matcher over single bytes, at the beginning of a text; it stays there.

    Raises:
        InvalidRequestError: a token takes too long, or more than the library's bounds allow.
    """
    source = random.Random(0)
    for number in range(NUM_TEXTS):
        matcher = beginning.deep_copy()
        for _ in range(NUM_BYTES):
            start = time.thread_time()
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            found = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:256])
            may_come = found.tolist()
            if not may_come:
                break
            deeper = [byte for byte in may_come if byte in OPENING] if number == 0 else []
            matcher.consume_token(source.choice(deeper or may_come))
            if time.thread_time() - start > MAX_TOKEN_SECONDS:
                raise InvalidRequestError("it would take too long to follow; it has too many alternatives")
            if matcher.is_error() or matcher.is_stopped():
                break
        _check(matcher)


def _check(matcher: "LLMatcher") -> None:
    if matcher.is_error() and not matcher.get_error().startswith("NoExtension"):
        raise InvalidRequestError("it is too complex to be followed; it has too many alternatives")
