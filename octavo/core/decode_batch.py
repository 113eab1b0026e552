"""Requests that advance by one token a step, together.

Most running requests do the same in every step: compute one token, draw the next. Their counts follow two counters of
the batch, and what happens to one of them (a block to get, a block to publish, its last token) is known in advance as
the number of a step. So a step costs work for what changes, and next to nothing for what merely runs.
"""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from octavo.core.request import Request

_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class Roster:
    """Members of the batch, in order of rank, in parallel lists.

    ``offsets[i]`` plus the number of planned steps is the position that member i computes next.
    """

    requests: list[Request] = field(default_factory=list)
    row_ids: list[int] = field(default_factory=list)
    token_lists: list[list[int]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, request: Request, offset: int) -> None:
        at = bisect_left(self.requests, request.rank, key=_rank)
        self.requests.insert(at, request)
        self.row_ids.insert(at, request.row_id)
        self.token_lists.insert(at, request.token_ids)
        self.offsets.insert(at, offset)

    def remove(self, request: Request) -> None:
        at = bisect_left(self.requests, request.rank, key=_rank)
        del self.requests[at], self.row_ids[at], self.token_lists[at], self.offsets[at]

    def copy(self) -> "Roster":
        return Roster(self.requests.copy(), self.row_ids.copy(), self.token_lists.copy(), self.offsets.copy())


class Due(NamedTuple):
    """Members that a plan has to look at, in order of rank: those whose blocks are full and those that have drawn their
    last token; one may be in both."""

    at_boundary: list[Request]
    at_end: list[Request]


class DecodeBatch:
    """Members, and when each has to be looked at. Steps of the batch are numbered from 1.

    ``num_planned`` and ``num_landed`` count its steps; a member that joined at step j takes part from step j + 1 on.
    ``num_departures`` changes whenever a member leaves.

    In step q a member with offset o computes position o + q - 1. So it fills a block with every step q for which o + q
    is a multiple of the block size, and needs a new one in the step after: members of one phase, -o modulo the block
    size, do so together. Its last token is drawn in a step known when it joins.
    """

    def __init__(self, block_size: int) -> None:
        self._members = Roster()
        self._roster: Roster | None = None
        self.num_planned = 0
        self.num_landed = 0
        self.num_departures = 0
        self.stop_token_ids: frozenset[int] = frozenset()
        """Ids that end at least one member."""
        self._stop_sets: Counter[frozenset[int]] = Counter()
        self._phases: list[set[Request]] = [set() for _ in range(block_size)]
        self._endings: defaultdict[int, set[Request]] = defaultdict(set)

    @property
    def roster(self) -> Roster:
        """The members now; this copy never changes, so steps in flight keep it. One is made where somebody has come or
        gone since the last one."""
        if self._roster is None:
            self._roster = self._members.copy()
        return self._roster

    @property
    def scheduled_requests(self) -> set[Request]:
        """Requests that will be looked at, for checks: all members and nobody else."""
        return set().union(*self._phases, *self._endings.values())

    def join(self, request: Request) -> None:
        """Take in a running request that lacks exactly one token (the last one, drawn or on its way), and whose blocks
        end with the block of its last computed token."""
        request.join(self)
        offset = request.num_computed_tokens - self.num_planned
        self._members.add(request, offset)
        self._roster = None
        self._phase(offset).add(request)
        self._endings[_last_step(request, offset)].add(request)
        self._stop_sets[request.stop_token_ids] += 1
        if self._stop_sets[request.stop_token_ids] == 1:
            self._unite_stop_ids()

    def leave(self, request: Request) -> None:
        """Let a member go; its counts stand on their own again."""
        self._members.remove(request)
        self._roster = None
        self.num_departures += 1
        offset = request.num_computed_tokens - self.num_planned
        self._phase(offset).remove(request)
        last = _last_step(request, offset)
        self._endings[last].remove(request)
        if not self._endings[last]:
            del self._endings[last]
        request.leave_batch()
        self._stop_sets[request.stop_token_ids] -= 1
        if not self._stop_sets[request.stop_token_ids]:
            del self._stop_sets[request.stop_token_ids]
            self._unite_stop_ids()

    def due_for_plan(self) -> Due:
        """Members that the next step cannot take along without a look: their blocks are full (and those that go on
        need one more), or they have drawn their last token already, in a step in flight."""
        full = self._phases[self.num_planned % len(self._phases)]
        return Due(sorted(full, key=_rank), sorted(self._endings.get(self.num_planned, ()), key=_rank))

    def land(self, step: int) -> list[Request]:
        """Step ``step`` has landed: returns the members that drew their last token with it, in order of rank."""
        self.num_landed = step
        return sorted((request for request in self._endings.get(step, ()) if request.joined < step), key=_rank)

    def _phase(self, offset: int) -> set[Request]:
        return self._phases[-offset % len(self._phases)]

    def _unite_stop_ids(self) -> None:
        self.stop_token_ids = frozenset().union(*self._stop_sets)


def _last_step(request: Request, offset: int) -> int:
    """The step of the batch that draws the last token a request may have."""
    return request.max_total_tokens - 1 - offset


def append_tokens(roster: Roster, token_ids: Iterable[int]) -> None:
    """One drawn token to each member; a deque without room is the quickest loop there is."""
    deque(map(list.append, roster.token_lists, token_ids), maxlen=0)
