"""Stop strings over streamed text, and the stream of text that one choice of a request becomes.

The rule (spec D8), as if applied to the whole text at once: of all occurrences of all stop strings the one that starts
first ends the text; of those that start at the same place, the one that ends first. The text does not depend on how it
was cut into tokens, so an occurrence waits while one that started earlier may still be completed.
"""

from collections import deque
from functools import lru_cache
from typing import NamedTuple

from octavo.core.sampling_params import SamplingParams
from octavo.engine.detokenizer import Detokenizer, TokenPieces


class StopMatch(NamedTuple):
    """Where a stop string ended the text: ``start`` and ``end`` count characters from the start of the output."""

    stop: str
    start: int
    end: int


class StopAutomaton:
    """All stop strings of a request as one automaton (Aho and Corasick, 1975): the work follows the text's length,
    not the number or the length of the stop strings.

    A state stands for the longest tail of the text so far that is the beginning of some stop string: that tail is
    what must be held back. State 0 is the empty tail.
    """

    __slots__ = ("depths", "failures", "matches", "transitions")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.transitions: list[dict[str, int]] = [{}]
        self.depths = [0]
        self.matches: list[str | None] = [None]
        """The longest stop string that ends here, hence the one that starts earliest."""
        for stop in stops:
            self._insert(stop)
        self.failures = [0] * len(self.depths)
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            following = self.transitions[state].get(character)
            if following is None:
                following = len(self.depths)
                self.transitions[state][character] = following
                self.transitions.append({})
                self.depths.append(self.depths[state] + 1)
                self.matches.append(None)
            state = following
        self.matches[state] = stop

    def _link(self) -> None:
        """Failure links in order of depth, so that a link's own target is ready when it is needed."""
        queue = deque(self.transitions[0].values())
        while queue:
            state = queue.popleft()
            if self.matches[state] is None:
                self.matches[state] = self.matches[self.failures[state]]
            for character, child in self.transitions[state].items():
                self.failures[child] = self.step(self.failures[state], character)
                queue.append(child)

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        following = self.transitions[state].get(character)
        while following is None and state:
            state = self.failures[state]
            following = self.transitions[state].get(character)
        return following or 0


@lru_cache(maxsize=32)
def compile_stops(stops: tuple[str, ...]) -> StopAutomaton:
    """The automaton of these stop strings, shared: the choices of a request, and often its neighbours, ask for the
    same. Few are kept, since at the limits of spec D14 one takes a megabyte."""
    return StopAutomaton(stops)


class StopChecker:
    """Decides how far a growing text is certain. What may still turn out to be (part of) a stop string is held back."""

    __slots__ = ("_automaton", "_candidate", "_held", "_include_stop", "_num_decided", "_state", "match")

    def __init__(self, stops: tuple[str, ...], include_stop: bool = False) -> None:
        self._automaton = compile_stops(stops)
        self._include_stop = include_stop
        self._state = 0
        self._held = ""
        self._num_decided = 0
        self._candidate: StopMatch | None = None
        self.match: StopMatch | None = None
        """Set once, when the end of the text is certain."""

    def feed(self, text: str, suppressed: bool = False) -> str:
        """Add ``text``; returns the text that became certain (nothing, once there is a match).

        ``suppressed`` (min_tokens not reached, spec D6): this text passes through, and no match holds any of it.
        """
        if self.match is not None:
            return ""
        if suppressed:
            self._state, self._candidate = 0, None
            return self._release(self._held + text, 0)
        if not self._state and self._automaton.transitions[0].keys().isdisjoint(text):
            return self._release(text, 0)
        return self._scan(text)

    def finish(self) -> str:
        """The text is complete: what was held back is decided; ``match`` may be set by this."""
        if self.match is not None:
            return ""
        if self._candidate is not None:
            return self._cut(self._held, self._candidate)
        return self._release(self._held, 0)

    def _scan(self, text: str) -> str:
        automaton = self._automaton
        held = self._held + text
        end = self._num_decided + len(self._held)
        for character in text:
            end += 1
            self._state = automaton.step(self._state, character)
            stop = automaton.matches[self._state]
            if stop is not None:
                start = end - len(stop)
                if self._candidate is None or start < self._candidate.start:
                    self._candidate = StopMatch(stop, start, end)
            if self._candidate is not None and end - automaton.depths[self._state] >= self._candidate.start:
                return self._cut(held, self._candidate)  # nothing that started earlier is still open
        return self._release(held, automaton.depths[self._state])

    def _release(self, text: str, num_held: int) -> str:
        """Decide all of ``text`` but its last ``num_held`` characters."""
        cut = len(text) - num_held
        self._held = text[cut:]
        self._num_decided += cut
        return text[:cut]

    def _cut(self, text: str, match: StopMatch) -> str:
        """End the text at ``match``; ``text`` begins at the first undecided character."""
        self.match = match
        self._held = ""
        return text[: (match.end if self._include_stop else match.start) - self._num_decided]


class TextStream:
    """The text of one choice: tokens in, decided text out.

    For each sampled token ``append``; whenever text is wanted ``take_delta``; at the end ``finish``, then a last
    ``take_delta``. A token that ends the sequence by its id (EOS, stop_token_ids) is not appended: it is handed to
    ``finish``. The joined deltas are the text of the choice, streamed or not. With ``params.detokenize`` false there
    is no text, but stop strings still work.
    """

    __slots__ = ("_checker", "_decided", "_detokenizer", "_include_end", "_silent", "_undecoded")

    def __init__(self, pieces: TokenPieces, params: SamplingParams) -> None:
        self._detokenizer = Detokenizer(pieces, params.skip_special_tokens, params.shown_token_ids or ())
        self._checker = StopChecker(params.stops, params.include_stop_str_in_output) if params.stops else None
        self._include_end = params.include_stop_str_in_output
        self._silent = not params.detokenize
        self._undecoded = self._silent and not params.stops
        self._decided = ""

    def append(self, token_id: int, suppressed: bool = False) -> StopMatch | None:
        """Add a sampled token; the match, if the text is now certain to end at a stop string.

        ``suppressed``: this token is among the first min_tokens. Tokens after a match add nothing.
        """
        if self._undecoded:
            return None
        return self._feed(self._detokenizer.add(token_id), suppressed)

    def take_delta(self) -> str:
        """The text that became certain since the last call: whole characters, no part of an undecided stop string."""
        delta, self._decided = self._decided, ""
        return delta

    def finish(self, end_token_id: int | None = None) -> StopMatch | None:
        """No token follows: flush what was held back; call once. A match returned here ends the text all the same.

        ``end_token_id``: the token that ended the sequence by its id; its text belongs to the output only with
        include_stop_str_in_output (and, for a control token, without skip_special_tokens).
        """
        if self._undecoded:
            return None
        if end_token_id is not None and self._include_end:
            self._feed(self._detokenizer.add(end_token_id), False)
        self._feed(self._detokenizer.finish(), False)
        if self._checker is None:
            return None
        self._emit(self._checker.finish())
        return self._checker.match

    def _feed(self, text: str, suppressed: bool) -> StopMatch | None:
        if self._checker is None:
            self._emit(text)
            return None
        self._emit(self._checker.feed(text, suppressed))
        return self._checker.match

    def _emit(self, text: str) -> None:
        if not self._silent:
            self._decided += text
