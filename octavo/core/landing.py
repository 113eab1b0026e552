"""What comes of a step that has landed: tokens enter their requests, prompts the prefix cache, requests end."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.beam_group import BeamGroup
from octavo.core.decode_batch import append_tokens
from octavo.core.flight import Flight
from octavo.core.population import Population
from octavo.core.request import Request, Status
from octavo.core.scheduler_types import StepOutcome, StopCheck
from octavo.core.step import RowFault, StepResult


@dataclass(frozen=True, slots=True)
class Landing:
    """A step that lands: the flight, what it brought, what comes of it; ``reader``: the last step in flight that may
    read blocks which are given up now."""

    flight: Flight
    result: StepResult
    check_stop: StopCheck | None
    outcome: StepOutcome
    reader: int | None


class Lander:
    """Takes steps in; owns no request."""

    def __init__(self, population: Population) -> None:
        self._population = population
        self._kv = population.kv
        self._running = population.running

    def land(self, landing: Landing) -> None:
        flight = landing.flight
        # First: a block that the step copied from comes back before a table gives up what stands before it.
        self._kv.land(flight.plan.step_id)
        batch_size = len(flight.roster.requests)
        at_end = self._running.batch.land(flight.batch_step)
        if self._running.batch.num_departures == flight.num_departures and not landing.result.faults:
            self._land_batch(landing, at_end)
        else:
            self._land_rows(landing, 0, batch_size)
        if len(flight.requests) > batch_size:
            self._land_rows(landing, batch_size, len(flight.requests))
        num_further = sum(map(len, landing.outcome.further.values()))
        self._population.counters.generation_tokens += len(landing.outcome.token_ids) + num_further

    def _land_batch(self, landing: Landing, at_end: list[Request]) -> None:
        """The decode batch as a whole: nobody has left it since it was planned. ``at_end``: members that have drawn the
        last token they may have."""
        roster, outcome = landing.flight.roster, landing.outcome
        token_ids = landing.result.token_ids[: len(roster.requests)]
        append_tokens(roster, token_ids)
        outcome.sampled.extend(roster.requests)
        outcome.token_ids.extend(token_ids)
        # Stop ids are of somebody, if not of who drew them.
        if landing.result.completed or not self._running.batch.stop_token_ids.isdisjoint(token_ids):
            for request, token_id in zip(roster.requests, token_ids, strict=True):
                if self._ends(landing, request, token_id):
                    outcome.finished.append(request)
            return
        stops = landing.check_stop(roster.requests, token_ids) if landing.check_stop else {}
        for request in sorted({*at_end, *stops}, key=lambda request: request.rank):
            self._end(request, stops.get(request))
            outcome.finished.append(request)

    def _land_rows(self, landing: Landing, first: int, last: int) -> None:
        """Rows ``first`` .. ``last`` - 1 of the plan, one by one. All rows before ``first`` have drawn a token."""
        flight, plan = landing.flight, landing.flight.plan
        drawn = iter(landing.result.token_ids[first:])
        drafts = dict(plan.drafts)
        for request, row_id, count, samples in zip(
            flight.requests[first:last],
            plan.row_ids[first:last],
            plan.counts[first:last],
            plan.samples[first:last],
            strict=True,
        ):
            token_id = next(drawn) if samples else None
            draft_token_ids = drafts.get(row_id)
            is_member = request.batch is not None and request.joined < flight.batch_step
            if draft_token_ids:
                request.land_before_drafts()
            elif not is_member:
                request.land(count, samples)
            if request.is_finished:
                self._population.land_ended(request)
                continue
            self._population.publisher.publish_prompt(request, landing.reader)
            if token_id is None:
                continue
            if request.row_id in landing.result.faults:
                self._fail(landing, request)
            elif request.group is not None:
                self._land_beam(landing, request, request.group)
            else:
                self._land_token(landing, request, token_id)
                if draft_token_ids:
                    self._land_drafts(landing, request, len(draft_token_ids))

    def _land_token(self, landing: Landing, request: Request, token_id: int) -> None:
        outcome = landing.outcome
        outcome.sampled.append(request)
        outcome.token_ids.append(token_id)
        request.token_ids.append(token_id)
        self._count_prompt(request)
        self._population.requeue(self._population.families.take(request))
        if self._ends(landing, request, token_id, is_last=request.row_id not in landing.result.further):
            outcome.finished.append(request)

    def _land_drafts(self, landing: Landing, request: Request, num_drafted: int) -> None:
        """The tokens that a row with drafts has drawn after its first one: each says that the one before it, a draft,
        was right. What comes after the one that ends the request is dropped."""
        counters, landed = self._population.counters, list[int]()
        further = landing.result.further.get(request.row_id, ())
        for token_id in further:
            if request.is_finished:
                break
            request.accept_draft()
            landed.append(token_id)
            request.token_ids.append(token_id)
            if self._ends(landing, request, token_id, is_last=len(landed) == len(further)):
                landing.outcome.finished.append(request)
        if landed:
            landing.outcome.further[request] = landed
        counters.num_drafts += 1
        counters.num_draft_tokens += num_drafted
        counters.num_accepted_tokens += len(landed)

    def _fail(self, landing: Landing, request: Request) -> None:
        """No token could be drawn for this row; the other beams of a search fail with it."""
        fault = landing.result.faults[request.row_id]
        for member in request.group.members if request.group else [request]:
            self._population.end(member, Status.FAILED)
            landing.outcome.failed[member] = fault

    def _end(self, request: Request, stop: str | None) -> None:
        """``stop``: the stop string that ends it; None where it has drawn all the tokens that it may."""
        self._population.end(request, Status.LENGTH if stop is None else Status.STOPPED, stop)

    def _ends(self, landing: Landing, request: Request, token_id: int, is_last: bool = True) -> bool:
        """``is_last``: the step has drawn no further token for it."""
        check_stop = landing.check_stop
        if token_id in request.stop_token_ids and request.num_output_tokens > request.params.min_tokens:
            listed = token_id in (request.params.stop_token_ids or ())
            self._population.end(request, Status.STOPPED, token_id if listed else None)
        elif check_stop is not None and (stop := check_stop([request], [token_id]).get(request)) is not None:
            self._end(request, stop)
        elif is_last and request.row_id in landing.result.completed:
            request.is_complete = True
            self._population.end(request, Status.STOPPED)
        elif len(request.token_ids) >= request.max_total_tokens:
            self._end(request, None)
        else:
            return False
        return True

    # Beams

    def _land_beam(self, landing: Landing, request: Request, group: BeamGroup) -> None:
        """A beam's best tokens are there. When those of all beams are, some beams go on, others give their rows and
        blocks to forks of those; or the search is over."""
        best = landing.result.logprobs[request.row_id].top
        if not group.note(request, best):
            return
        self._count_prompt(request)
        continuations = group.search.advance(group.take_candidates())
        if not continuations:
            self._end_search(landing, group)
            return
        parents = [group.beams[continuation.beam] for continuation in continuations]
        group.beams = self._inherit(group, parents)
        for beam, continuation in zip(group.beams, continuations, strict=True):
            beam.token_ids.append(continuation.token_id)
            if beam.status is Status.RUNNING:
                self._population.rename_row(beam)

    def _inherit(self, group: BeamGroup, parents: Sequence[Request]) -> list[Request]:
        """One member for each of ``parents``: the parent itself the first time, a fork of it after that."""
        unused = [member for member in group.members if member not in parents]
        for member in unused:
            self._population.withdraw(member)
        beams: list[Request] = []
        for parent in parents:
            if parent not in beams:
                beams.append(parent)
            else:
                beams.append(unused.pop(0))
                self._population.fork_or_queue(parent, beams[-1])
        self._population.families.add(group, unused)
        return beams

    def _end_search(self, landing: Landing, group: BeamGroup) -> None:
        """Each member ends with a result; or without one, where fewer tokens can be drawn than there are beams."""
        found = group.search.finished
        for member in group.members[len(found) :]:
            self._population.end(member, Status.FAILED)
            message = f"the search found {len(found)} sequences for its {len(group.members)} beams; take fewer beams"
            landing.outcome.failed[member] = RowFault(message, invalid=True)
        for member, hypothesis in zip(group.members, found, strict=False):
            self._population.end(member, Status.STOPPED if hypothesis.is_stopped else Status.LENGTH)
            member.token_ids[member.num_prompt_tokens :] = hypothesis.token_ids
            self._population.counters.generation_tokens += len(hypothesis.token_ids)
            landing.outcome.hypotheses[member] = hypothesis

    def _count_prompt(self, request: Request) -> None:
        """Count a prompt, and what the cache had of it, when its first token is there: once a request, whatever its
        choices and preemptions."""
        is_first = request.num_output_tokens == (request.group is None)
        if not is_first or request.choice_index != 0:
            return
        counters = self._population.counters
        counters.prompt_tokens += request.num_prompt_tokens
        self._population.tenants.count_prompt(request)
        if self._kv.config.enable_prefix_caching and request.may_read_cache:
            counters.prefix_queries += request.num_prompt_tokens
            counters.prefix_hits += request.num_cached_tokens or 0
