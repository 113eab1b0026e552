"""The sequences of one beam search: as many requests as beams, whose tokens and blocks change hands at every step."""

from collections.abc import Sequence

from octavo.core.beam_search import BeamSearch, Candidate
from octavo.core.request import Request


class BeamGroup:
    """``members``: one request a beam, the first of which computes the prompt; the others wait until there are as
    many beams. ``beams``: the members that hold a beam, in the order of ``search``.

    A beam's row draws nothing: its step brings the best tokens, and when those of every beam have landed the search
    says which go on.
    """

    def __init__(self, members: list[Request], search: BeamSearch) -> None:
        self.members = members
        self.search = search
        self.beams = members[:1]
        self._candidates: dict[Request, Sequence[Candidate]] = {}
        for member in members:
            member.group = self

    def note(self, request: Request, candidates: Sequence[Candidate]) -> bool:
        """The step of one beam has landed; true when it was the last."""
        self._candidates[request] = candidates
        return len(self._candidates) == len(self.beams)

    def forget(self, request: Request) -> None:
        """A beam loses its blocks: it computes its last token once more, and the others wait for it."""
        self._candidates.pop(request, None)

    def take_candidates(self) -> list[Sequence[Candidate]]:
        """The best tokens after each beam, in order; forgotten after."""
        candidates = [self._candidates[beam] for beam in self.beams]
        self._candidates = {}
        return candidates
