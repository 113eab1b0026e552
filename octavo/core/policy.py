"""Rules of the commons, each a function of its own: who gives way, and how. Who goes first: see ``ordering``."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from octavo.core.request import Request
from octavo.core.scheduler_types import PreemptionCosts, PreemptionMode


class Loss(NamedTuple):
    """What it costs and brings to preempt a sequence: ``num_tokens`` that nobody else holds and that would have to be
    computed again, or moved, and ``num_blocks`` that come free."""

    num_tokens: int
    num_blocks: int


def least_work_lost(candidates: Iterable[Request], loss_of: Callable[[Request], Loss]) -> Request | None:
    """Whom to preempt among requests that may be: the one that loses the fewest tokens, the last in rank of equals;
    first of those whose going brings blocks, but rather one that shares all of its own than none, since the others that
    share them may go next.

    The scheduler offers only requests that come after the one in need in rank, so the first in rank is never preempted
    and two requests never take turns preempting each other (design, Decided 8).
    """

    def key(request: Request) -> tuple[bool, int, int]:
        loss = loss_of(request)
        return loss.num_blocks == 0, loss.num_tokens, -request.rank

    return min(candidates, key=key, default=None)


def prefers_swap(mode: PreemptionMode, num_tokens: int, num_blocks: int, costs: PreemptionCosts) -> bool:
    """Keep a preempted request's own blocks, by copying ``num_blocks`` out and in again, rather than compute its
    ``num_tokens`` tokens in them once more? In mode "auto" what takes less time, as measured; copying, until computing
    has been."""
    if mode != "auto" or costs.seconds_per_token is None:
        return mode != "recompute"
    return 2 * num_blocks * costs.seconds_per_block < num_tokens * costs.seconds_per_token


def growth_reserve(num_running: int, num_blocks: int) -> int:
    """Blocks kept free at admission for what the running sequences will need soon: one for every four of them
    (each takes a block every ``block_size`` steps), at most 1 % of the pool."""
    return min((num_running + 3) // 4, num_blocks // 100)
