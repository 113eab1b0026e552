"""Calls as Mistral's models write them, after ``[TOOL_CALLS]``.

Older models write a list of objects with name and arguments; newer ones the marker before each call, the name, and the
arguments after it, with or without ``[CALL_ID]`` and ``[ARGS]`` between.
"""

import re
from collections.abc import Collection, Sequence

from octavo.server.tools.call import Draft, attempt, read_arguments, read_call_object
from octavo.server.tools.callee import Callee
from octavo.server.tools.events import EventList
from octavo.server.tools.feed import BLANKS, Reading, TextFeed
from octavo.server.tools.json_calls import read_list_tail
from octavo.server.tools.rules import BLANK, call_list, joined
from octavo.structured.lark import exactly, json_text, one_of

MARKER, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[A-Za-z0-9_.\-]*")


def read_mistral(feed: TextFeed, out: EventList, names: Collection[str]) -> Reading[None]:
    while True:
        yield from feed.until((MARKER,), out.content)
        call = _MarkedCall()
        if (yield from attempt(feed, out, names, call.read, is_marked=True)) and call.is_in_list:
            yield from read_list_tail(feed, out, names)


class _MarkedCall:
    """The marker and the call after it. ``is_in_list``: found while reading."""

    def __init__(self) -> None:
        self.is_in_list = False

    def read(self, feed: TextFeed, draft: Draft) -> Reading[None]:
        """See ReadCall."""
        yield from feed.match(MARKER)
        yield from feed.run_all(BLANKS)
        self.is_in_list = yield from feed.match("[")
        if self.is_in_list:
            yield from feed.run_all(BLANKS)
        if (yield from feed.peek()) == "{":
            yield from read_call_object(feed, draft)
        else:
            yield from _read_named(feed, draft)


def _read_named(feed: TextFeed, draft: Draft) -> Reading[None]:
    """``name[CALL_ID]id[ARGS]{...}``, both markers optional. See ReadCall."""
    draft.set_name((yield from feed.run_all(_NAME)))
    if (yield from feed.match(CALL_ID)):
        yield from feed.run_all(_NAME)
    yield from feed.match(ARGS)
    yield from read_arguments(feed, draft)
    draft.end()


def mistral_rules(callees: Sequence[Callee], is_parallel: bool) -> str:
    """See Rules. Both ways: which of them the model was taught is its own to know."""
    named = [f"{exactly(each.name)} id? mark_2? {json_text(each.arguments)}" for each in callees]
    return "\n".join(
        [
            "calls: mark_0 BLANK? list | named_calls",
            joined("named_calls", "named", "BLANK?", is_parallel),
            f"named: mark_0 BLANK? {one_of(*named)}",
            "id: mark_1 /[A-Za-z0-9]{9}/",
            call_list("list", callees, is_parallel),
            BLANK,
        ]
    )
