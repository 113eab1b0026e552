"""Calls as plain JSON: an object with name and arguments, or a list of them, wherever it stands in the text.

For models that were taught no markers, and for output that a schema has shaped. A Markdown fence around it, with or
without the word json, is taken as part of it.
"""

from collections.abc import Collection, Sequence

from octavo.server.tools.call import Draft, attempt, read_arguments, read_call_object
from octavo.server.tools.callee import Callee
from octavo.server.tools.events import EventList
from octavo.server.tools.feed import BLANKS, Reading, TextFeed
from octavo.server.tools.rules import call_list, call_object

FENCE = "```"


def read_json_calls(
    feed: TextFeed, out: EventList, names: Collection[str], *, is_all_calls: bool = False
) -> Reading[None]:
    """``is_all_calls``: the text can be nothing else, so that a beginning of it is nothing to show."""
    while True:
        yield from feed.until((FENCE, "[", "{"), out.content)
        opening = _Opening()
        if not (yield from attempt(feed, out, names, opening.read, is_marked=is_all_calls)):
            continue
        if opening.is_list:
            yield from read_list_tail(feed, out, names)
        if opening.is_fenced:
            yield from feed.run_all(BLANKS)
            yield from feed.match(FENCE)


class _Opening:
    """What stands before the first call, and that call. The flags are found while reading."""

    def __init__(self) -> None:
        self.is_fenced = False
        self.is_list = False

    def read(self, feed: TextFeed, draft: Draft) -> Reading[None]:
        """See ReadCall."""
        self.is_fenced = yield from feed.match(FENCE)
        if self.is_fenced:
            yield from feed.match("json")
            yield from feed.run_all(BLANKS)
        self.is_list = yield from feed.match("[")
        yield from feed.run_all(BLANKS)
        yield from read_call_object(feed, draft)


def read_list_tail(feed: TextFeed, out: EventList, names: Collection[str]) -> Reading[None]:
    """The further calls of a list, and its end."""
    while True:
        yield from feed.run_all(BLANKS)
        if (yield from feed.match("]")) or not (yield from feed.match(",")):
            return
        yield from feed.run_all(BLANKS)
        if not (yield from attempt(feed, out, names, read_call_object, is_marked=True)):
            return


class NamedCall:
    """The syntax of a text that is the arguments of function ``name`` and nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, feed: TextFeed, out: EventList, names: Collection[str]) -> Reading[None]:
        yield from attempt(feed, out, names, self._read, is_marked=False)
        while True:
            yield from feed.until((), out.content)

    def _read(self, feed: TextFeed, draft: Draft) -> Reading[None]:
        draft.set_name(self._name)
        yield from read_arguments(feed, draft)
        draft.end()


def json_rules(callees: Sequence[Callee], is_parallel: bool) -> str:
    """See Rules."""
    return "\n".join(["calls: object | list", call_object("object", callees), call_list("list", callees, is_parallel)])
