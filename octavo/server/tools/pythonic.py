"""Calls as Llama 4 and the small Llama 3.2 write them: a list of calls in Python, as the whole answer.

    [get_weather(city="Berlin", days=[1, 2]), now()]

Between ``<|python_start|>`` and ``<|python_end|>``, which Llama 4 may write around it, it may come in mid-text too.
"""

import json
import re
from collections.abc import Collection

from octavo.server.tools.call import Draft, attempt
from octavo.server.tools.events import EventList
from octavo.server.tools.feed import BLANKS, Reading, TextFeed
from octavo.server.tools.json_value import NotJsonError, expect, skip_blanks
from octavo.server.tools.python_value import read_python_value

START, END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_KEY = re.compile(r"\w*")


def read_pythonic(feed: TextFeed, out: EventList, names: Collection[str]) -> Reading[None]:
    yield from skip_blanks(feed, out.content)
    if (yield from feed.peek()) == "[":
        yield from _read_list(feed, out, names, is_marked=False)
    while True:
        yield from feed.until((START,), out.content)
        yield from _read_list(feed, out, names, is_marked=True)


def _read_list(feed: TextFeed, out: EventList, names: Collection[str], *, is_marked: bool) -> Reading[None]:
    if not (yield from attempt(feed, out, names, _read_first, is_marked=is_marked)):
        return
    while True:
        yield from feed.run_all(BLANKS)
        if (yield from feed.match("]")) or not (yield from feed.match(",")):
            break
        yield from feed.run_all(BLANKS)
        if (yield from feed.match("]")) or not (yield from attempt(feed, out, names, _read_call, is_marked=True)):
            break
    yield from feed.run_all(BLANKS)
    yield from feed.match(END)


def _read_first(feed: TextFeed, draft: Draft) -> Reading[None]:
    """The beginning of a list and the first call. See ReadCall."""
    yield from feed.match(START)
    yield from feed.run_all(BLANKS)
    yield from expect(feed, "[")
    yield from feed.run_all(BLANKS)
    yield from _read_call(feed, draft)


def _read_call(feed: TextFeed, draft: Draft) -> Reading[None]:
    draft.set_name((yield from feed.run_all(_NAME)))
    yield from expect(feed, "(")
    keys: set[str] = set()
    while True:
        yield from feed.run_all(BLANKS)
        if (yield from feed.match(")")):
            break
        if keys:
            yield from expect(feed, ",")
            yield from feed.run_all(BLANKS)
            if (yield from feed.match(")")):
                break
        key = yield from feed.run_all(_KEY)
        if not key or key in keys:
            raise NotJsonError
        yield from feed.run_all(BLANKS)
        yield from expect(feed, "=")
        draft.add((", " if keys else "{") + json.dumps(key, ensure_ascii=False) + ": ")
        keys.add(key)
        yield from feed.run_all(BLANKS)
        yield from read_python_value(feed, draft.add)
    if keys:
        draft.add("}")
    draft.end()
