"""Calls as Hermes and Qwen models write them: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from collections.abc import Collection, Sequence

from octavo.server.tools.call import Draft, attempt, read_call_object
from octavo.server.tools.callee import Callee
from octavo.server.tools.events import EventList
from octavo.server.tools.feed import BLANKS, Reading, TextFeed
from octavo.server.tools.rules import BLANK, call_object, joined

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def read_hermes(feed: TextFeed, out: EventList, names: Collection[str]) -> Reading[None]:
    """A call is whole with its last brace; a closing marker that is missing is not missed."""
    while True:
        yield from feed.until((OPEN,), out.content)
        if (yield from attempt(feed, out, names, _read_call, is_marked=True)):
            yield from feed.run_all(BLANKS)
            yield from feed.match(CLOSE)


def _read_call(feed: TextFeed, draft: Draft) -> Reading[None]:
    yield from feed.match(OPEN)
    yield from feed.run_all(BLANKS)
    yield from read_call_object(feed, draft)


def hermes_rules(callees: Sequence[Callee], is_parallel: bool) -> str:
    """See Rules."""
    call = "call: mark_0 BLANK? object BLANK? mark_1"
    return "\n".join([joined("calls", "call", "BLANK?", is_parallel), call, call_object("object", callees), BLANK])
