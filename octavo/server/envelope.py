"""Events that differ in one part alone: what comes before and after it is encoded once."""

from collections.abc import Mapping
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


class Envelope:
    """Around the ``choices`` of streamed chunks."""

    __slots__ = ("_head", "_tail")

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """``before``, ``after``: the fields of a chunk, some at least and perhaps none."""
        self._head = _encode(before)[:-1] + b',"choices":'
        rest = _encode(after)
        self._tail = b"}" if rest == b"{}" else b"," + rest[1:]

    def chunk(self, choice: Mapping[str, Any]) -> msgspec.Raw:
        """That of one choice: what encoding all the fields at once would give."""
        return msgspec.Raw(self._head + b"[" + _encode(choice) + b"]" + self._tail)
