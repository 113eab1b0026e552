"""Policy "fair": the tenant that has got least goes next.

Each tenant has a counter of the service it got, in weighted tokens: those of its prompts that were computed, and those
of its answers. The first request of the tenant with the smallest counter is admitted next. This is the virtual token
counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024). docs/scheduling.md says the bound.
"""

from collections.abc import Iterable
from math import inf

from octavo.core.least import Least
from octavo.core.ordering import Fcfs
from octavo.core.request import UNRANKED, Request, Status
from octavo.core.running import RunningSet
from octavo.core.scheduler_types import PolicySettings
from octavo.core.tenants import Tenant, Tenants

STARTED = ""
"""The line of requests that have run and wait to go on, and of those for which others gave way or wait. They go before
all others, in order of rank: clients of the former have part of the answer; who gave way must not go first again, as
it would for ever."""


class FairShares(Fcfs):
    """One line a tenant. A rank is drawn when a request starts, or when the first is about to pass it: so those that
    have started keep their order, whatever the counters are by then."""

    def __init__(self, settings: PolicySettings, tenants: Tenants) -> None:
        self._settings = settings
        self._tenants = tenants
        self._next_rank = 0
        self._last_started: Tenant | None = None
        self._backlogged = Least(self._service_in_line)

    def arrive(self, request: Request, running: RunningSet) -> None:
        """A tenant that had nothing in line earned nothing meanwhile: its counter is lifted to the smallest of those
        that have, or where nobody has, to that of the tenant that left the line last."""
        tenant = self._tenants.of(request.tenant)
        if tenant.num_unstarted:
            return
        self.catch_up(running)
        floor = self._least_service()
        if floor is None:
            floor = 0.0 if self._last_started is None else self._service(self._last_started)
        tenant.lift += max(0.0, floor - self._service(tenant))
        self._backlogged.note(request.tenant, self._service(tenant))

    def take_up(self, request: Request) -> None:
        """The beams of a search wait for each other, so all of them are before whoever is after one."""
        for member in request.group.members if request.group else (request,):
            if member.rank == UNRANKED:
                member.rank = self._next_rank
                self._next_rank += 1

    def start(self, request: Request) -> None:
        if request.status is Status.WAITING:
            self._last_started = self._tenants.of(request.tenant)

    def hasten(self, request: Request) -> None:
        request.is_hastened = True

    def line_of(self, request: Request) -> str:
        return STARTED if self._goes_by_rank(request) else request.tenant

    def place(self, request: Request) -> int:
        return request.rank if self._goes_by_rank(request) else request.order

    def _goes_by_rank(self, request: Request) -> bool:
        """A further beam gets in line when its search has begun: the others wait for it."""
        is_awaited = request.group is not None and request is not request.group.members[0]
        return is_awaited or request.is_hastened or request.status is not Status.WAITING

    def share(self, line: str) -> float:
        return -inf if line == STARTED else self._service(self._tenants.of(line))

    def may_pass(self, request: Request) -> bool:
        """Only of a tenant that is not far ahead of the one that has got least."""
        least = self._least_service()
        return least is None or self._service(self._tenants.of(request.tenant)) - least <= self._settings.fair_slack

    def are_equal(self, one: Request, other: Request) -> bool:
        return one.tenant == other.tenant

    def catch_up(self, running: Iterable[Request]) -> None:
        self._tenants.settle(running)

    def standing(self, request: Request) -> dict[str, int | float]:
        """Its tenant's counter, and by how much it is ahead of the smallest of those that have requests in line."""
        service = self._service(self._tenants.of(request.tenant))
        least = self._least_service()
        return {"tenant_service": service, "tenant_ahead": 0.0 if least is None else service - least}

    def _least_service(self) -> float | None:
        """Of the tenants with requests that have not started; None: there are none."""
        name = self._backlogged.first()
        return None if name is None else self._service_in_line(name)

    def _service_in_line(self, name: str) -> float | None:
        tenant = self._tenants.backlogged(name)
        return None if tenant is None else self._service(tenant)

    def _service(self, tenant: Tenant) -> float:
        """The counter: weighted tokens, and what was lifted."""
        settings = self._settings
        return (
            tenant.lift
            + settings.fair_input_weight * tenant.computed_prompt_tokens
            + settings.fair_output_weight * tenant.generation_tokens
        )
