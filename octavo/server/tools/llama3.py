"""Calls as Llama 3 models write them: ``{"name": ..., "parameters": {...}}`` as the whole answer.

Several are parted by ``;``. Before the first ``<|python_tag|>`` may stand, and there a call may come in mid-text too.
"""

import re
from collections.abc import Collection, Sequence

from octavo.server.tools.call import Draft, attempt, read_call_object
from octavo.server.tools.callee import Callee
from octavo.server.tools.events import EventList
from octavo.server.tools.feed import BLANKS, Reading, TextFeed
from octavo.server.tools.json_value import skip_blanks
from octavo.server.tools.rules import BLANK, call_object, joined

TAG = "<|python_tag|>"
_BETWEEN = re.compile(r"[ \t\r\n;,]*")


def read_llama3(feed: TextFeed, out: EventList, names: Collection[str]) -> Reading[None]:
    yield from skip_blanks(feed, out.content)
    while True:
        while (yield from feed.peek()) == "{" and (
            yield from attempt(feed, out, names, read_call_object, is_marked=False)
        ):
            yield from feed.run_all(_BETWEEN)
        yield from feed.until((TAG,), out.content)
        if (yield from attempt(feed, out, names, _read_tagged, is_marked=True)):
            yield from feed.run_all(_BETWEEN)


def _read_tagged(feed: TextFeed, draft: Draft) -> Reading[None]:
    yield from feed.match(TAG)
    yield from feed.run_all(BLANKS)
    yield from read_call_object(feed, draft)


def llama3_rules(callees: Sequence[Callee], is_parallel: bool) -> str:
    """See Rules."""
    objects = joined("objects", "object", '";" BLANK?', is_parallel)
    return "\n".join(["calls: mark_0? objects", objects, call_object("object", callees, "parameters"), BLANK])
