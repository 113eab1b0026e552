"""Calls as Llama 4 and the small Llama 3.2 write them: a list of calls in Python, as the whole answer.

    [get_weather(city="Berlin", days=[1, 2]), now()]

Between ``<|python_start|>`` and ``<|python_end|>``, which Llama 4 may write around it, it may come in mid-text too.
"""

import json
import re
from collections.abc import Collection, Sequence

from octavo.server.tools.call import Draft, attempt
from octavo.server.tools.callee import Callee
from octavo.server.tools.events import EventList
from octavo.server.tools.feed import BLANKS, Reading, TextFeed
from octavo.server.tools.json_value import NotJsonError, expect, skip_blanks
from octavo.server.tools.python_value import read_python_value
from octavo.server.tools.rules import arguments_of, joined
from octavo.structured.lark import exactly, json_text, one_of

START, END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"[A-Za-z0-9_.\-]*")
_KEY = re.compile(r"\w*")
_ANY_KEY = '/[A-Za-z_][A-Za-z0-9_]*/ "="'


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


def pythonic_rules(callees: Sequence[Callee], is_parallel: bool) -> str:
    """See Rules. Values are JSON's, which the reader takes as well, or Python's words where any value may come."""
    names = [f"call_{number}" for number in range(len(callees))]
    return "\n".join(
        [
            'calls: mark_0? "[" listed "]" mark_1?',
            joined("listed", "call", '", "', is_parallel),
            f"call: {one_of(*names)}",
            f'any: {json_text({})} | "True" | "False" | "None"',
            *map(_call_rules, names, callees),
        ]
    )


def _call_rules(name: str, callee: Callee) -> str:
    """The rule ``name``. Arguments from one on are ``NAME_at_1`` where none has come before, else ``NAME_more_1``."""
    arguments = arguments_of(callee, _KEY)
    if not arguments and not callee.is_strict:
        argument = f"{name}_any: {_ANY_KEY} any"
        return f'{name}: {exactly(callee.name)} "(" ({name}_any (", " {name}_any)*)? ")"\n{argument}'
    rules = [f'{name}: {exactly(callee.name)} "(" {name}_at_0 ")"']
    for number, (key, schema, is_required) in enumerate(arguments):
        given = f'{exactly(key)} "=" {json_text(schema) if callee.is_strict else "any"} {name}_more_{number + 1}'
        for place, comma in (("at", ""), ("more", '", " ')):
            left_out = "" if is_required else f" | {name}_{place}_{number + 1}"
            rules.append(f"{name}_{place}_{number}: {comma}{given}{left_out}")
    ends = (f'{name}_{place}_{len(arguments)}: ""' for place in ("at", "more"))
    return "\n".join([*rules, *ends])
