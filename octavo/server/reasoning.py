"""What a model thinks before it answers, told apart from the answer: ``<think> ... </think>``, then the answer."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from octavo.server.tools.feed import BLANKS, EndOfTextError, Reading, TextFeed


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """``is_always_open``: the model begins inside, whether or not the prompt or the answer shows the opening mark."""

    open: str
    close: str
    is_always_open: bool = False

    def open_after(self, prompt_end: str) -> bool:
        """Does an answer to a prompt that ends so begin inside the thinking?"""
        end = prompt_end.rstrip()
        return end.endswith(self.open) or (self.is_always_open and not end.endswith(self.close))

    def closed_after(self, prompt_end: str) -> bool:
        """Has the prompt ended the thinking already, as templates do where it is switched off?"""
        return prompt_end.rstrip().endswith(self.close)

    def open_within(self, begun: str) -> bool:
        """Does an answer of which this much is there already go on inside the thinking?"""
        opened, closed = begun.rfind(self.open), begun.rfind(self.close)
        return self.is_always_open if opened == closed else opened > closed


REASONING_PARSERS: Mapping[str, ReasoningMarks] = {
    "qwen3": ReasoningMarks("<think>", "</think>"),
    "deepseek_r1": ReasoningMarks("<think>", "</think>", is_always_open=True),
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),
}
"""By vLLM's names."""


class Split(NamedTuple):
    reasoning: str
    answer: str


class ReasoningSplitter:
    """Pure and incremental: the joined parts of all pieces are those of the whole text fed at once.

    ``is_open``: the text begins inside the thinking. Thinking that is never closed is all there is: no answer.
    """

    def __init__(self, marks: ReasoningMarks, is_open: bool) -> None:
        self._feed = TextFeed()
        self._marks = marks
        self._reasoning: list[str] = []
        self._answer: list[str] = []
        self._reading = self._read(is_open)

    def feed(self, text: str) -> Split:
        """What ``text``, the next piece, makes certain."""
        self._feed.add(text)
        next(self._reading)
        return self._take()

    def finish(self) -> Split:
        """What is left."""
        self._feed.end(is_cut=False)
        with suppress(EndOfTextError):
            next(self._reading)
        return self._take()

    def _take(self) -> Split:
        split = Split("".join(self._reasoning), "".join(self._answer))
        self._reasoning.clear()
        self._answer.clear()
        return split

    def _read(self, is_open: bool) -> Reading[None]:
        feed, marks = self._feed, self._marks
        if (yield from self._opens()) or is_open:
            yield from feed.until((marks.close,), self._reasoning.append)
            yield from feed.match(marks.close)
        yield from feed.until((), self._answer.append)

    def _opens(self) -> Reading[bool]:
        """Reads the opening mark and the blanks before it, or nothing."""
        feed = self._feed
        feed.set_mark()
        try:
            yield from feed.run_all(BLANKS)
            found = yield from feed.match(self._marks.open)
        except EndOfTextError:
            found = False
        if not found:
            feed.go_back()
        feed.release()
        return found
