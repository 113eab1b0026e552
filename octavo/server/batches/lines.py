"""The lines of a batch's input file, as OpenAI defines it, read one at a time."""

import codecs
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import msgspec

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")

RECORD_ID_PREFIX = "batch_req_"

ENVELOPE_BYTES = 64 * 2**10
"""What a line may have beside its body."""

_PIECE_BYTES = 2**20


class Line(NamedTuple):
    """``data``: without the line break; None where the line is longer than may be. ``record_id``: the id of its record
    in the output, which follows from the model's name, the line's number and its text."""

    number: int
    record_id: str
    data: bytes | None
    has_end: bool


class BatchRequest(NamedTuple):
    """What a line asks for. ``body``: JSON, as it stands in the file."""

    custom_id: str
    url: str
    body: bytes


class BadLineError(Exception):
    """A line that asks for nothing that can be done; ``custom_id``: as far as it is known."""

    def __init__(self, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.custom_id = custom_id


class _Written(msgspec.Struct):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw()


class _Streamed(msgspec.Struct):
    stream: bool | None = None


def text_digest(text: str) -> bytes:
    """16 bytes that stand for ``text``."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def record_digest(record_id: str) -> bytes:
    """The 16 bytes in the id of a record.

    Raises:
        ValueError: it is none.
    """
    digest = bytes.fromhex(record_id.removeprefix(RECORD_ID_PREFIX))
    if len(digest) != 16:
        raise ValueError(record_id)
    return digest


def read_lines(file: BinaryIO, model_name: str, max_bytes: int) -> Iterator[Line]:
    """All lines that hold something. Of a line longer than ``max_bytes`` no more than that is ever in memory."""
    for number in itertools.count(1):
        data = file.readline(max_bytes + 1)
        if not data:
            return
        digest = hashlib.blake2b(f"{model_name}\0{number}\0".encode(), digest_size=16)
        has_end, is_long = data.endswith(b"\n"), len(data) > max_bytes and not data.endswith(b"\n")
        if number == 1:
            data = data.removeprefix(codecs.BOM_UTF8)
        data = data.rstrip(b"\r\n")
        digest.update(data)
        while is_long and not has_end:
            piece = file.readline(_PIECE_BYTES)
            has_end = not piece or piece.endswith(b"\n")
            digest.update(piece)
        if is_long or data.strip():
            record_id = RECORD_ID_PREFIX + digest.hexdigest()
            yield Line(number, record_id, None if is_long else data, has_end)


def read_request(line: Line, max_body_bytes: int) -> BatchRequest:
    """
    Raises:
        BadLineError: why the line is none, in a sentence.
    """
    if line.data is None or len(line.data) > max_body_bytes + ENVELOPE_BYTES:
        raise BadLineError(f"The line is longer than the limit of {max_body_bytes + ENVELOPE_BYTES} bytes.")
    try:
        written = msgspec.json.decode(line.data, type=_Written)
    except (ValueError, RecursionError) as error:
        cut = "" if line.has_end else " It is the last one and has no line break: the file may have been cut off."
        raise BadLineError(f"The line is not a JSON object: {error}."[:500] + cut) from None
    custom_id = written.custom_id
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLineError("custom_id must be a text that is not empty.")
    fault = _fault(written)
    if fault is not None:
        raise BadLineError(fault, custom_id)
    return BatchRequest(custom_id, written.url, bytes(written.body))


def _fault(written: _Written) -> str | None:
    if written.method != "POST":
        return f"method must be 'POST', got {written.method!r:.80}."
    if written.url not in URLS:
        return f"url must be one of {', '.join(URLS)}, got {written.url!r:.200}."
    if bytes(written.body) in (b"", b"null"):
        return "The line has no body."
    if _is_streamed(written.body):
        return "stream cannot be true in a batch: an answer is written when it is whole."
    return None


def _is_streamed(body: msgspec.Raw) -> bool:
    """What is no body at all, or has another ``stream``, is answered as over HTTP."""
    try:
        return bool(msgspec.json.decode(body, type=_Streamed).stream)
    except (ValueError, RecursionError):
        return False
