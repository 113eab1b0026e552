"""The text of one answer to content and calls, in whatever pieces it comes."""

from collections.abc import Callable, Collection

from octavo.server.tools.events import Event, EventList
from octavo.server.tools.feed import EndOfTextError, Reading, TextFeed

Syntax = Callable[[TextFeed, EventList, Collection[str]], Reading[None]]
"""A way to write calls, of functions of these names: reads the text to its end, telling what it finds."""


class ToolParser:
    """Pure and incremental. The events of all pieces, joined, are those of the whole text fed at once."""

    def __init__(self, syntax: Syntax, names: Collection[str]) -> None:
        self._feed = TextFeed()
        self._out = EventList()
        self._reading = syntax(self._feed, self._out, names)

    def feed(self, text: str) -> list[Event]:
        """What ``text``, the next piece, makes certain."""
        self._feed.add(text)
        next(self._reading)
        return self._out.take()

    def finish(self, is_cut: bool) -> list[Event]:
        """What is left. ``is_cut``: a limit ended the text, so that a call may be unfinished without being wrong."""
        self._feed.end(is_cut)
        try:
            next(self._reading)
        except EndOfTextError:
            self._out.finish()
        return self._out.take()
