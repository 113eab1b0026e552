"""Requests that advance by one token a step, together.

Most running requests do the same in every step: compute one token, draw the next. Their counts follow two counters of
the batch, and what happens to one of them (a block to get, a block to publish, its last token) is known in advance as
the number of a step. So a step costs work for what changes, and next to nothing for what merely runs.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from octavo.core.request import NEVER, Request


@dataclass(frozen=True, slots=True)
class Roster:
    """The members at one time, oldest first, in parallel lists that are never changed.

    ``offsets[i]`` plus the number of planned steps is the position that member i computes next.
    """

    requests: list[Request]
    row_ids: list[int]
    token_lists: list[list[int]]
    offsets: list[int]

    def with_member(self, request: Request, offset: int) -> "Roster":
        at = bisect_left(self.requests, request.order, key=_age)
        members = (request, request.row_id, request.token_ids, offset)
        lists = zip(self._lists(), members, strict=True)
        return Roster(*([*old[:at], new, *old[at:]] for old, new in lists))  # type: ignore[index]

    def without_member(self, request: Request) -> "Roster":
        at = bisect_left(self.requests, request.order, key=_age)
        return Roster(*([*old[:at], *old[at + 1 :]] for old in self._lists()))

    def _lists(self) -> tuple[list[Request], list[int], list[list[int]], list[int]]:
        return self.requests, self.row_ids, self.token_lists, self.offsets


class _Calendar:
    """Which members to look at in which step. A member that leaves takes its entries along."""

    def __init__(self) -> None:
        self._members: defaultdict[int, set[Request]] = defaultdict(set)
        self._steps: defaultdict[Request, set[int]] = defaultdict(set)

    def enter(self, request: Request, step: int) -> None:
        self._members[step].add(request)
        self._steps[request].add(step)

    def take(self, step: int) -> list[Request]:
        """Members entered for ``step``, oldest first, entered no more."""
        due = self._members.pop(step, ())
        for request in due:
            self._steps[request].remove(step)
        return sorted(due, key=_age)

    def remove(self, request: Request) -> None:
        for step in self._steps.pop(request, ()):
            members = self._members[step]
            members.remove(request)
            if not members:
                del self._members[step]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._steps)


class DecodeBatch:
    """Members and the calendar of their events. Steps of the batch are numbered from 1.

    ``num_planned`` and ``num_landed`` count its steps; a member that joined at step j takes part from step j + 1 on.
    ``num_departures`` changes whenever a member leaves.
    """

    def __init__(self, block_size: int) -> None:
        self.roster = Roster([], [], [], [])
        self.num_planned = 0
        self.num_landed = 0
        self.num_departures = 0
        self.stop_token_ids: frozenset[int] = frozenset()
        """Ids that end at least one member."""
        self._block_size = block_size
        self._stop_sets: Counter[frozenset[int]] = Counter()
        self._to_plan = _Calendar()
        self._to_land = _Calendar()

    @property
    def scheduled_requests(self) -> set[Request]:
        """Requests that the calendar holds, for checks: all members and nobody else."""
        return {*self._to_plan, *self._to_land}

    def join(self, request: Request) -> None:
        """Take in a running request that lacks exactly one token: the last one, drawn or on its way."""
        computed = request.num_computed_tokens
        request.join(self)
        self.roster = self.roster.with_member(request, computed - self.num_planned)
        assert request.tables is not None
        self._enter(self._to_plan, request, request.tables.capacity - computed + 1)
        self._enter(self._to_plan, request, request.max_total_tokens - computed)
        self._enter(self._to_land, request, request.max_total_tokens - computed - 1)
        if request.next_publish < NEVER:
            self._enter(self._to_land, request, self._block_size - computed % self._block_size)
        self._stop_sets[request.stop_token_ids] += 1
        if self._stop_sets[request.stop_token_ids] == 1:
            self._unite_stop_ids()

    def leave(self, request: Request) -> None:
        """Let a member go; its counts stand on their own again."""
        self.roster = self.roster.without_member(request)
        self.num_departures += 1
        self._to_plan.remove(request)
        self._to_land.remove(request)
        request.leave_batch()
        self._stop_sets[request.stop_token_ids] -= 1
        if not self._stop_sets[request.stop_token_ids]:
            del self._stop_sets[request.stop_token_ids]
            self._unite_stop_ids()

    def due_for_plan(self) -> list[Request]:
        """Members that the next step cannot take along without a look: they lack room, or have all their tokens."""
        return self._to_plan.take(self.num_planned + 1)

    def has_room(self, request: Request) -> None:
        """``request`` got blocks: look again when they are used up."""
        assert request.tables is not None
        self._enter(self._to_plan, request, request.tables.capacity - request.num_computed_tokens + 1)

    def land(self, step: int) -> list[Request]:
        """Step ``step`` has landed: returns the members that filled a block or drew their last token with it."""
        self.num_landed = step
        due = self._to_land.take(step)
        for request in due:
            if request.next_publish < NEVER:
                in_flight = self.num_planned - self.num_landed
                filled = request.num_landed_tokens % self._block_size
                self._enter(self._to_land, request, self._block_size - filled - in_flight)
        return due

    def _enter(self, calendar: _Calendar, request: Request, steps_ahead: int) -> None:
        calendar.enter(request, self.num_planned + steps_ahead)

    def _unite_stop_ids(self) -> None:
        self.stop_token_ids = frozenset().union(*self._stop_sets)


def append_tokens(roster: Roster, token_ids: Iterable[int]) -> None:
    """One drawn token to each member."""
    for tokens, token_id in zip(roster.token_lists, token_ids, strict=True):
        tokens.append(token_id)


def _age(request: Request) -> int:
    return request.order
