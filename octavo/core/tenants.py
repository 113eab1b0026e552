"""What each tenant has asked for and got: for the policy that goes by it, and for the statistics."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from octavo.core.request import Request, Status

DEFAULT_TENANT = "default"
"""Of requests that name none."""

OTHER_TENANTS = "other"
"""Those that have no figures of their own; one that is called so is among them."""

MAX_NAMED_TENANTS = 64
"""The first so many to come have figures of their own in the statistics; all others are summed up."""

MAX_TENANTS = 1024
"""So many are known; of more, those without open requests are forgotten."""


class TenantCounts(NamedTuple):
    """Tokens of prompts whose first token has come, and tokens generated."""

    prompt_tokens: int
    generation_tokens: int


@dataclass(slots=True)
class Tenant:
    """``num_unstarted`` of its ``num_open`` sequences wait for their first step. ``computed_prompt_tokens``: those that
    were not cached when a request started, each request once. ``lift``: see ``FairShares``."""

    num_open: int = 0
    num_unstarted: int = 0
    prompt_tokens: int = 0
    computed_prompt_tokens: int = 0
    generation_tokens: int = 0
    lift: float = 0.0


class Tenants:
    """Tokens of an answer are counted when somebody asks (``settle``), so a step that decodes owes nothing to this."""

    def __init__(self) -> None:
        self._known: dict[str, Tenant] = {}
        self._named: list[str] = []
        self._forgotten = Tenant()

    def of(self, name: str) -> Tenant:
        """The record of a tenant, a new one at its first request."""
        tenant = self._known.get(name)
        if tenant is None:
            if len(self._known) >= MAX_TENANTS:
                self._forget_idle()
            tenant = self._known[name] = Tenant()
            if len(self._named) < MAX_NAMED_TENANTS and name != OTHER_TENANTS:
                self._named.append(name)
        return tenant

    def backlogged(self, name: str) -> Tenant | None:
        """The record of a tenant, if it has requests that have not started."""
        tenant = self._known.get(name)
        return tenant if tenant is not None and tenant.num_unstarted else None

    def add(self, request: Request) -> None:
        tenant = self.of(request.tenant)
        tenant.num_open += 1
        tenant.num_unstarted += 1

    def start(self, request: Request, num_computed: int) -> None:
        """A request starts, with ``num_computed`` tokens of its prompt to compute. Only its first start counts."""
        if request.status is Status.WAITING:
            tenant = self.of(request.tenant)
            tenant.num_unstarted -= 1
            tenant.computed_prompt_tokens += num_computed

    def count_prompt(self, request: Request) -> None:
        self.of(request.tenant).prompt_tokens += request.num_prompt_tokens

    def settle(self, requests: Iterable[Request]) -> None:
        """Count what these have said since they were last looked at."""
        for request in requests:
            num_new = request.num_output_tokens - request.num_settled_tokens
            if num_new > 0:
                self.of(request.tenant).generation_tokens += num_new
                request.num_settled_tokens += num_new

    def end(self, request: Request) -> None:
        """A request is about to end."""
        self.settle((request,))
        tenant = self.of(request.tenant)
        tenant.num_open -= 1
        tenant.num_unstarted -= request.status is Status.WAITING

    def counts(self) -> dict[str, TenantCounts]:
        """By name, and of all those without figures of their own together; of these nothing where there are none."""
        found = {name: _counts((self._known[name],)) for name in self._named}
        others = [tenant for name, tenant in self._known.items() if name not in found]
        rest = _counts((*others, self._forgotten))
        return found | ({OTHER_TENANTS: rest} if others or any(rest) else {})

    def _forget_idle(self) -> None:
        idle = [name for name, tenant in self._known.items() if not tenant.num_open and name not in self._named]
        for name in idle:
            tenant = self._known.pop(name)
            self._forgotten.prompt_tokens += tenant.prompt_tokens
            self._forgotten.generation_tokens += tenant.generation_tokens


def _counts(tenants: Iterable[Tenant]) -> TenantCounts:
    each = list(tenants)
    return TenantCounts(sum(one.prompt_tokens for one in each), sum(one.generation_tokens for one in each))
