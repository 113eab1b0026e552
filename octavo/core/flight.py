"""A step between its planning and its landing."""

from dataclasses import dataclass

from octavo.core.decode_batch import Roster
from octavo.core.request import Request
from octavo.core.step import StepPlan


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan in flight: its requests, row by row, of which the first are the ``roster``'s, in batch step
    ``batch_step``; ``num_departures`` of the batch when it was planned; ``unfounded``: requests
    that began in it on what it computes or brings in itself."""

    plan: StepPlan
    requests: list[Request]
    roster: Roster
    batch_step: int
    num_departures: int
    unfounded: list[Request]
