"""What a parser finds in a text, in order."""

from dataclasses import dataclass


@dataclass(slots=True)
class Content:
    """Text that is no call."""

    text: str


@dataclass(slots=True)
class CallBegin:
    """A call of function ``name``; what follows up to its CallEnd belongs to it."""

    name: str


@dataclass(slots=True)
class Arguments:
    """A piece of the call's arguments, which joined are a JSON object."""

    text: str


@dataclass(slots=True)
class CallEnd:
    """``is_complete``: the arguments are whole. Otherwise the text ended inside them, or went on as no JSON can."""

    is_complete: bool


@dataclass(slots=True)
class Cut:
    """The text ended inside a call of which nothing could be told."""


Event = Cut | Content | CallBegin | Arguments | CallEnd


class EventList:
    """Collects events; neighbours of one kind become one. Blanks between calls, or around one, are part of no text:
    blanks at the beginning of a text wait for what follows."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._blanks = ""
        self._in_text = False
        self._num_calls = 0

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    @property
    def begins_with_text(self) -> bool:
        """Has content come, and no call before it?"""
        return self._in_text and not self._num_calls

    def content(self, text: str) -> None:
        if not self._in_text:
            text, self._blanks = self._blanks + text, ""
            if not text.strip():
                self._blanks = text
                return
            self._in_text = True
        last = self._events[-1] if self._events else None
        if isinstance(last, Content):
            last.text += text
        else:
            self._events.append(Content(text))

    def begin(self, name: str) -> None:
        self._in_text, self._blanks = False, ""
        self._num_calls += 1
        self._events.append(CallBegin(name))

    def arguments(self, text: str) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, Arguments):
            last.text += text
        else:
            self._events.append(Arguments(text))

    def end(self, is_complete: bool) -> None:
        self._events.append(CallEnd(is_complete))

    def cut(self) -> None:
        self._events.append(Cut())

    def finish(self) -> None:
        """The text has ended. Blanks that are all there is are the answer."""
        if self._blanks and not self._num_calls:
            self._events.append(Content(self._blanks))
