"""Steps of schedulers that have no blocks."""

from collections.abc import Sequence
from typing import NamedTuple

from octavo.core.request import Request
from octavo.core.step import StepPlan


class PlannedRow(NamedTuple):
    """Tokens ``start`` .. ``start + num_tokens - 1`` of a request are computed; ``samples``: the next one is drawn."""

    request: Request
    row_id: int
    start: int
    num_tokens: int
    samples: bool


def make_plan(step_id: int, rows: Sequence[PlannedRow]) -> StepPlan:
    """What is computed; where it is written is nobody's business here."""
    return StepPlan(
        step_id=step_id,
        swap_outs=(),
        swap_ins=(),
        copies=(),
        new_rows=(),
        table_writes=(),
        row_ids=tuple(row.row_id for row in rows),
        starts=tuple(row.start for row in rows),
        counts=tuple(row.num_tokens for row in rows),
        samples=tuple(row.samples for row in rows),
        released_rows=(),
    )
