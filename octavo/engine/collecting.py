"""Turns what a step brought into deltas and times."""

from collections.abc import Sequence

from octavo.core.errors import InvalidRequestError
from octavo.core.scheduler_types import StepOutcome
from octavo.core.step import StepPlan, StepResult
from octavo.engine.choice import Choice
from octavo.engine.open_requests import OpenRequests


def collect(requests: OpenRequests, plan: StepPlan, result: StepResult, outcome: StepOutcome, now: float) -> None:
    """A step has landed. A search has no time to its first token and none between tokens: they come all at once, at its
    end."""
    choices, deltas = requests.choices, requests.news.deltas
    requests.news.iteration_tokens += plan.num_tokens
    if result.prompt_logprobs or result.pooled:
        _collect_prompts(requests, plan, result, outcome)
    for sequence, token_id in zip(outcome.sampled, outcome.token_ids, strict=True):
        choice = choices[sequence]
        choice.add_token(token_id, result.logprobs.get(sequence.row_id) if result.logprobs else None)
        _note_times(requests, choice, now)
        if sequence in outcome.further:
            _collect_further(requests, choice, outcome.further[sequence], result, now)
        if sequence.is_finished:
            requests.close(sequence)
        else:
            deltas.append(choice.take_delta())
    for sequence, hypothesis in outcome.hypotheses.items():
        choices[sequence].take_hypothesis(hypothesis)
        requests.close(sequence)
    for sequence, fault in outcome.failed.items():
        requests.fail(sequence, InvalidRequestError(fault.message) if fault.invalid else fault.message)


def _collect_further(
    requests: OpenRequests, choice: Choice, token_ids: Sequence[int], result: StepResult, now: float
) -> None:
    """What a row with drafts brought after its first token: no time lies between these."""
    entries = result.further_logprobs.get(choice.sequence.row_id, ())
    for place, token_id in enumerate(token_ids):
        choice.add_token(token_id, entries[place] if entries else None)
        _note_times(requests, choice, now)


def _collect_prompts(requests: OpenRequests, plan: StepPlan, result: StepResult, outcome: StepOutcome) -> None:
    for sequence, start, count in zip(outcome.landed, plan.starts, plan.counts, strict=True):
        choice = requests.choices.get(sequence)
        if choice is not None and sequence.row_id in result.pooled:
            choice.add_pooled(start, count, result.pooled[sequence.row_id])
        if choice is not None and sequence.row_id in result.prompt_logprobs:
            choice.add_prompt_logprobs(start + 1, result.prompt_logprobs[sequence.row_id])


def _note_times(requests: OpenRequests, choice: Choice, now: float) -> None:
    if choice.last_token is None:
        choice.first_token = now
        requests.decisions.note_first_token(choice, now)
        requests.news.first_token_seconds.append(now - choice.arrival)
        sequence = choice.sequence
        requests.news.cached_shares.append((sequence.num_cached_tokens or 0) / sequence.num_prompt_tokens)
    else:
        requests.news.token_intervals.append(now - choice.last_token)
    choice.last_token = now
