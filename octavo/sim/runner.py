"""A runner that computes nothing."""

from itertools import compress

from octavo.core.step import StepPlan, StepResult


def draw_row_ids(plan: StepPlan) -> StepResult:
    """Each row draws its own id all the time, so that no two sequences generate the same by chance and share it."""
    if all(plan.samples):
        return StepResult(plan.step_id, plan.row_ids)
    return StepResult(plan.step_id, tuple(compress(plan.row_ids, plan.samples)))
