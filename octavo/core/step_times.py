"""What is learned from how long steps take; whoever runs them says so."""

from octavo.core.scheduler import Scheduler
from octavo.core.step import StepPlan

MIN_MEASURED_TOKENS = 64
"""Steps of fewer tokens say little of what a token of a prompt costs."""


def note_step_seconds(scheduler: Scheduler, plan: StepPlan, seconds: float) -> None:
    """A step has come back that took so long; to be told before it lands. What computing a token costs, from steps that
    are mostly prompt (see PreemptionCosts), and what a row of an answer does, from those that have no other (see
    StepCosts); and what prompts cost beside answers (see Pace)."""
    num_tokens, costs = plan.num_tokens, scheduler.population.costs
    scheduler.pace.note(plan, seconds)
    if num_tokens >= MIN_MEASURED_TOKENS:
        seconds_per_token = seconds / num_tokens
        known = costs.seconds_per_token or seconds_per_token
        costs.seconds_per_token = known + (seconds_per_token - known) / 8
    num_drafts = sum(len(drafts.token_ids) for drafts in plan.drafts)
    if num_tokens == len(plan.row_ids) + num_drafts and not plan.forks:
        scheduler.speculation.costs.note(num_tokens, seconds)
