"""Reading one call: what it takes for a text to be one, and what becomes of it when it turns out to be none.

An attempt starts where a call may start. Nothing is said of it until it is sure enough: its arguments are a whole JSON
object, or have grown past MAX_HELD characters and are still the beginning of one. A text that breaks before that is
content, exactly as it was written. One that breaks later was begun in the client's sight; it ends there, incomplete,
and what follows is content.
"""

import json
from collections.abc import Callable, Collection

from octavo.server.tools.events import EventList
from octavo.server.tools.feed import EndOfTextError, Reading, TextFeed
from octavo.server.tools.json_value import NotJsonError, expect, read_string, read_value, skip_blanks

MAX_HELD = 128
"""Characters of arguments that wait for the rest of them before the client hears of the call."""

_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("type", "id")


class Draft:
    """A call that is being read. ``names``: of the functions there are."""

    def __init__(self, feed: TextFeed, out: EventList, names: Collection[str]) -> None:
        self._feed = feed
        self._out = out
        self._names = names
        self._held: list[str] = []
        self._num_held = 0
        self.name: str | None = None
        self.is_announced = False

    def set_name(self, name: str) -> None:
        """
        Raises:
            NotJsonError: there is no such function, or the call has a name.
        """
        if self.name is not None or name not in self._names:
            raise NotJsonError
        self.name = name

    def add(self, text: str) -> None:
        """A piece of the arguments."""
        if self.is_announced:
            self._out.arguments(text)
            return
        self._held.append(text)
        self._num_held += len(text)
        if self.name is not None and self._num_held > MAX_HELD:
            self.announce()

    def announce(self) -> None:
        assert self.name is not None
        self._out.begin(self.name)
        if self._held:
            self._out.arguments("".join(self._held))
        self._held, self.is_announced = [], True
        self._feed.release()

    def end(self) -> None:
        """The call is whole. One without arguments has none: ``{}``.

        Raises:
            NotJsonError: it has no name.
        """
        if self.name is None:
            raise NotJsonError
        if not self.is_announced:
            self._held = self._held or ["{}"]
            self.announce()
        self._out.end(is_complete=True)


ReadCall = Callable[[TextFeed, Draft], Reading[None]]
"""Reads a call from its first character to its last, into the draft.

Raises:
    NotJsonError: it is none.
    EndOfTextError: the text ended inside it.
"""


def attempt(
    feed: TextFeed, out: EventList, names: Collection[str], read: ReadCall, *, is_marked: bool
) -> Reading[bool]:
    """Is here a call? It is read and told, or else its text is content. ``is_marked``: it begins with a marker, so
    that of one that is cut before its name nothing is worth showing.

    Raises:
        EndOfTextError: the text ended inside it; what there is to tell has been told.
    """
    draft = Draft(feed, out, names)
    feed.set_mark()
    try:
        yield from read(feed, draft)
    except NotJsonError:
        if draft.is_announced:
            out.end(is_complete=False)
        else:
            out.content(feed.since_mark())
        return False
    except EndOfTextError:
        _end_cut(feed, out, draft, is_marked)
        raise
    return True


def _end_cut(feed: TextFeed, out: EventList, draft: Draft, is_marked: bool) -> None:
    if feed.is_cut and draft.name is not None and not draft.is_announced:
        draft.announce()
    if draft.is_announced:
        out.end(is_complete=False)
    elif feed.is_cut and is_marked:
        out.cut()
    else:
        out.content(feed.since_mark())


def read_call_object(feed: TextFeed, draft: Draft) -> Reading[None]:
    """``{"name": ..., "arguments": {...}}``, or ``parameters``, in any order. See ReadCall."""
    yield from expect(feed, "{")
    has_arguments = False
    while True:
        key = yield from _read_text(feed)
        yield from skip_blanks(feed, _drop)
        yield from expect(feed, ":")
        if key == "name":
            draft.set_name((yield from _read_text(feed)))
        elif key in _ARGUMENTS and not has_arguments:
            has_arguments = True
            yield from read_arguments(feed, draft)
        elif key in _IGNORED:
            yield from read_value(feed, _drop)
        else:
            raise NotJsonError
        yield from skip_blanks(feed, _drop)
        if (yield from feed.peek()) == "}":
            feed.take()
            draft.end()
            return
        yield from expect(feed, ",")


def read_arguments(feed: TextFeed, draft: Draft) -> Reading[None]:
    """A JSON object, into the draft's arguments. Raises as ReadCall does."""
    yield from skip_blanks(feed, _drop)
    if (yield from feed.peek()) != "{":
        raise NotJsonError
    yield from read_value(feed, draft.add)


def _read_text(feed: TextFeed) -> Reading[str]:
    """The text of a short string: a key, or a function's name."""
    yield from skip_blanks(feed, _drop)
    pieces: list[str] = []
    yield from read_string(feed, pieces.append)
    return str(json.loads("".join(pieces)))


def _drop(_text: str) -> None:
    pass
