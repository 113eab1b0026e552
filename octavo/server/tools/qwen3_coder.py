"""Calls as Qwen3-Coder writes them, in tags, with each argument as plain text.

    <tool_call>
    <function=name>
    <parameter=key>
    value, in as many lines as it takes
    </parameter>
    </function>
    </tool_call>

A value that is a text by the function's schema is given on as it comes; one of another type when it is whole.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from octavo.server.tools.call import Draft, attempt
from octavo.server.tools.events import EventList
from octavo.server.tools.feed import BLANKS, Reading, TextFeed
from octavo.server.tools.hermes import CLOSE, OPEN
from octavo.server.tools.json_value import NotJsonError
from octavo.server.tools.plain_values import as_json, is_plain_text

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
NAME = re.compile(r"[^<>\n]*")


def read_qwen3_coder(feed: TextFeed, out: EventList, names: Collection[str]) -> Reading[None]:
    """``names``: where it is a mapping, to the schemas of the parameters. The outer marker may be missing."""
    reader = _CallReader(names if isinstance(names, Mapping) else {})
    while True:
        yield from feed.until((OPEN, FUNCTION), out.content)
        if (yield from attempt(feed, out, names, reader.read, is_marked=True)):
            yield from feed.run_all(BLANKS)
            yield from feed.match(CLOSE)


class _CallReader:
    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas

    def read(self, feed: TextFeed, draft: Draft) -> Reading[None]:
        """See ReadCall."""
        if (yield from feed.match(OPEN)):
            yield from feed.run_all(BLANKS)
        name = yield from _tag(feed, FUNCTION)
        draft.set_name(name)
        schema = self._schemas.get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        keys: set[str] = set()
        while True:
            yield from feed.run_all(BLANKS)
            if (yield from feed.match(FUNCTION_END)):
                break
            key = yield from _tag(feed, PARAMETER)
            if key in keys:
                raise NotJsonError
            draft.add((", " if keys else "{") + json.dumps(key, ensure_ascii=False) + ": ")
            keys.add(key)
            yield from _read_value(feed, draft, properties.get(key) if isinstance(properties, Mapping) else None)
        if keys:
            draft.add("}")
        draft.end()


def _tag(feed: TextFeed, opening: str) -> Reading[str]:
    """The name in ``<function=name>`` and the like.

    Raises:
        NotJsonError: here is no such tag.
    """
    if not (yield from feed.match(opening)):
        raise NotJsonError
    name = yield from feed.run_all(NAME)
    if not name or not (yield from feed.match(">")):
        raise NotJsonError
    return name


def _read_value(feed: TextFeed, draft: Draft, schema: Any) -> Reading[None]:
    """The text between the tags, without one new line at either end."""
    yield from feed.match("\n")
    ends = ("\n" + PARAMETER_END, PARAMETER_END)
    if is_plain_text(schema):
        draft.add('"')
        yield from feed.until(ends, lambda text: draft.add(json.dumps(text, ensure_ascii=False)[1:-1]))
        draft.add('"')
    else:
        pieces: list[str] = []
        yield from feed.until(ends, pieces.append)
        draft.add(as_json("".join(pieces), schema))
    yield from feed.match("\n")
    yield from feed.match(PARAMETER_END)
