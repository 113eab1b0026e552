"""Speculation: which requests have tokens drafted for them, and how many.

A draft is a token that the computed count may catch up with before it is known. The step computes it like any other and
draws a token after each position; a draft was right if it equals what was drawn before it, and what stands after one
that was wrong does not count. So drafts change how many tokens a step brings, and never which.

They are free where the machine waits for bytes, and cost what rows cost everywhere else; so each is weighed: by the
chance that it comes true, against what a row costs beside the rest of the step.
"""

from collections.abc import Callable, Sequence
from itertools import islice, takewhile

from octavo.core.drafting import Drafter, NgramDrafter
from octavo.core.request import Request
from octavo.core.step_costs import MOST_ROWS, Gain, StepCosts

SPECULATION_METHODS = ("ngram", "off")
"""From where drafts come: from the sequence's own text, or not at all."""

BEST_CHANCE = 0.9
"""Where less than this would not pay, nobody looks for drafts: what could be gained is less than looking takes."""

PATIENCE = 8
"""Steps in which a request had no draft that would pay, after which it goes on in the decode batch."""


class Speculation:
    """At most ``max_draft_tokens`` drafts of a request in a step; 0: none are ever made.

    Requests that speculate are not members of the decode batch. Those for which there was nothing to draft for a while
    are, and are looked at again whenever they need a block.
    """

    def __init__(self, max_draft_tokens: int = 0, make_drafter: Callable[[], Drafter] = NgramDrafter) -> None:
        self.costs = StepCosts()
        self._max_draft_tokens = max_draft_tokens
        self._make_drafter = make_drafter

    def may_pay(self, num_rows: int) -> bool:
        """Could there be drafts that are worth a row in a step of ``num_rows`` rows?"""
        is_known = num_rows <= MOST_ROWS  # what rows cost is
        return self._max_draft_tokens > 0 and is_known and self.costs.gain(num_rows).pays(BEST_CHANCE)

    def engages(self, request: Request, num_running: int) -> bool:
        """Does a request that has caught up go on with drafts, rather than in the decode batch?"""
        if not self.may_pay(num_running):
            return False
        self._drafter_of(request)  # from now on it has one: what it draws is waited for
        return request.num_undrafted < PATIENCE

    def take_back(self, members: Sequence[Request], num_running: int) -> list[Request]:
        """Members of the decode batch for which there is something to draft: from now on they speculate."""
        if not members or not self.may_pay(num_running):
            return []
        promising = [request for request in members if self._promises(request, num_running)]
        for request in promising:
            request.num_undrafted = 0
        return promising

    def draft(self, request: Request, gain: Gain, most: int, num_running: int) -> tuple[int, ...]:
        """At most ``most`` tokens that may come next in a request that speculates and of which nothing is in flight,
        as many as are worth it in the step ``gain``, to which they are added."""
        if not self._promises(request, num_running):
            request.num_undrafted += 1
            return ()
        request.num_undrafted = 0
        proposed = islice(self._drafter_of(request).propose(request.token_ids), min(most, self._max_draft_tokens))
        return tuple([token_id for token_id, _ in takewhile(lambda each: gain.add(each[1]), proposed)])

    def _promises(self, request: Request, num_running: int) -> bool:
        """Is there a draft that would pay in a step of nothing but one row for each running request?"""
        drafter = self._drafter_of(request)
        drafter.follow(request.token_ids)
        first = next(drafter.propose(request.token_ids), None)
        return first is not None and self.costs.gain(num_running).pays(first[1])

    def _drafter_of(self, request: Request) -> Drafter:
        if request.drafter is None:
            request.drafter = self._make_drafter()
        return request.drafter
