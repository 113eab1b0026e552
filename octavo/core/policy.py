"""Rules of the commons, each a function of its own: who goes first, who gives way."""

from collections.abc import Iterable

from octavo.core.request import Request


def fcfs(request: Request) -> tuple[int, ...]:
    """First come, first served: sort key of the waiting queue, smallest first."""
    return (request.order,)


def least_work_lost(candidates: Iterable[Request]) -> Request | None:
    """Whom to preempt among requests that may be: the one with the fewest computed tokens, the youngest of equals.

    The scheduler offers only requests younger than the one in need, so the oldest is never preempted and two requests
    never take turns preempting each other (design, Decided 8).
    """
    return min(candidates, key=lambda request: (request.num_computed_tokens, -request.order), default=None)


def growth_reserve(num_running: int, num_blocks: int) -> int:
    """Blocks kept free at admission for what the running sequences will need soon: one for every four of them
    (each takes a block every ``block_size`` steps), at most 1 % of the pool."""
    return min((num_running + 3) // 4, num_blocks // 100)
