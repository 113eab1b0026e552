"""Request bodies: read up to a bound, decoded off the event loop when large, checked for depth."""

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import Request

from octavo.core.errors import InvalidRequestError
from octavo.server.access.auth import allowance_of
from octavo.server.errors import ApiError, ClientGoneError
from octavo.server.limits import ServerLimits
from octavo.server.plain_numbers import plain_whole_number

T = TypeVar("T")

INLINE_BYTES = 16 * 2**10
"""Bodies up to this size are decoded on the event loop: it takes less time than handing them to a thread."""

_STRING = re.compile(rb'"[^"]*"')
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_AT_FIELD = re.compile(r" - at (?:`key` in )?`\$\.([A-Za-z_]\w*)|missing required field `(\w+)`\Z")


async def read_request_body(request: Request, kind: type[T], limits: ServerLimits) -> T:
    """The body as ``kind``, a msgspec Struct. Unknown fields are ignored (spec D27).

    Raises:
        ApiError: 413 before any parsing where the body is longer than ``limits.body_bytes``.
        InvalidRequestError: not JSON, too deep, or a field of the wrong type (``param`` names it).
    """
    body = await read_body(request, _largest(request, limits))
    if len(body) <= INLINE_BYTES:
        return decode(body, kind, limits)
    return await asyncio.to_thread(decode, body, kind, limits)


def _largest(request: Request, limits: ServerLimits) -> int:
    allowance = allowance_of(request)
    own = None if allowance is None else allowance.limits.max_body_bytes
    return limits.body_bytes if own is None else min(own, limits.body_bytes)


async def read_body(request: Request, limit: int) -> bytes:
    """
    Raises:
        ApiError: 413 where it is longer than ``limit`` bytes.
        ClientGoneError: it will not come.
    """
    declared = plain_whole_number(request.headers.get("content-length", ""))
    if declared is not None and declared > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request body is larger than the limit of {limit} bytes.", code="request_too_large")


def decode(body: bytes, kind: type[T], limits: ServerLimits) -> T:
    """Bytes to ``kind``.

    Raises:
        InvalidRequestError: see ``read_request_body``.
    """
    _check_structure(body, limits)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        field = _AT_FIELD.search(str(error))
        raise InvalidRequestError(f"Invalid request: {error}"[:500], field[1] or field[2] if field else None) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequestError(f"The request body is not valid JSON: {error}"[:500]) from None


def _check_structure(body: bytes, limits: ServerLimits) -> None:
    """Depth and number of values, before anything is built from them.

    Every pass is one call over bytes: a decoder that builds millions of objects holds the interpreter for seconds.
    Innermost pairs of brackets are taken out one level a pass, so what is left after ``json_nesting`` is too deep.
    """
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_values = unescaped.count(b'"') // 4  # a value has at most two strings, its key and itself
    if num_values <= limits.json_values:
        structure = _STRING.sub(b"", unescaped).translate(_SQUARE, _NOT_STRUCTURE)
        num_values = max(structure.count(b",") + 1, structure.count(b"["))
    if num_values > limits.json_values:
        raise InvalidRequestError(f"The request body holds {num_values} values; the limit is {limits.json_values}.")
    brackets = structure.replace(b",", b"")
    for _ in range(limits.json_nesting):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise InvalidRequestError(
            f"The request body is not valid JSON, or nests deeper than the limit of {limits.json_nesting} levels."
        )
