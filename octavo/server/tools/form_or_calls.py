"""The text of an answer that may be calls, or else of a form."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from octavo.server.tools.events import EventList
from octavo.server.tools.feed import EndOfTextError, Reading, TextFeed
from octavo.server.tools.parser import Syntax


class FormOrCalls:
    """The syntax of a text that is calls if it begins with one, and else content, whatever it holds further on.
    ``openings``: what calls of ``syntax`` may begin with."""

    def __init__(self, syntax: Syntax, openings: Collection[str]) -> None:
        self._syntax = syntax
        self._openings = openings

    def __call__(self, feed: TextFeed, out: EventList, names: Collection[str]) -> Reading[None]:
        schemas = names if isinstance(names, Mapping) else dict.fromkeys(names)
        if (yield from self._opens(feed)):
            yield from self._syntax(feed, out, _UntilText(schemas, out))
        yield from feed.until((), out.content)

    def _opens(self, feed: TextFeed) -> Reading[bool]:
        for opening in self._openings:
            feed.set_mark()
            try:
                found = yield from feed.match(opening)
            except EndOfTextError:
                found = False
            feed.go_back()
            feed.release()
            if found:
                return True
        return False


class _UntilText(Mapping[str, Any]):
    """The functions, of which there are none any more once the text has turned out to be no call."""

    def __init__(self, schemas: Mapping[str, Any], out: EventList) -> None:
        self._schemas = schemas
        self._out = out

    def __contains__(self, name: object) -> bool:
        return not self._out.begins_with_text and name in self._schemas

    def __getitem__(self, name: str) -> Any:
        return self._schemas[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)
