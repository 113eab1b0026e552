"""What comes of a step that has landed: tokens enter their requests, full blocks the prefix cache, requests end."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.beam_group import BeamGroup
from octavo.core.decode_batch import Due, append_tokens
from octavo.core.flight import Flight
from octavo.core.kv_manager import FilledBlock
from octavo.core.population import Population
from octavo.core.request import NEVER, Request, Status
from octavo.core.scheduler_types import StepOutcome, StopCheck
from octavo.core.step import StepResult


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
        batch_size = len(flight.roster.requests)
        due = self._running.batch.land(flight.batch_step)
        if self._running.batch.num_departures == flight.num_departures and not landing.result.faults:
            self._land_batch(landing, due)
        else:
            self._land_rows(landing, 0, batch_size)
        self._land_rows(landing, batch_size, len(flight.requests))
        self._kv.land(flight.plan.step_id)
        self._population.counters.generation_tokens += len(landing.outcome.token_ids)

    def _land_batch(self, landing: Landing, due: Due) -> None:
        """The decode batch as a whole: nobody has left it since it was planned."""
        roster, outcome = landing.flight.roster, landing.outcome
        token_ids = landing.result.token_ids[: len(roster.requests)]
        append_tokens(roster, token_ids)
        self._publish_filled(due.at_boundary, landing.reader)
        outcome.sampled.extend(roster.requests)
        outcome.token_ids.extend(token_ids)
        if landing.check_stop is None and self._running.batch.stop_token_ids.isdisjoint(token_ids):
            ending = [(request, request.token_ids[-1]) for request in due.at_end]
        else:
            ending = list(zip(roster.requests, token_ids, strict=True))
        for request, token_id in ending:
            if self._ends(request, token_id, landing.check_stop):
                outcome.finished.append(request)

    def _land_rows(self, landing: Landing, first: int, last: int) -> None:
        """Rows ``first`` .. ``last`` - 1 of the plan, one by one. All rows before ``first`` have drawn a token."""
        flight, plan = landing.flight, landing.flight.plan
        drawn = iter(landing.result.token_ids[first:])
        for request, count, samples in zip(
            flight.requests[first:last], plan.counts[first:last], plan.samples[first:last], strict=True
        ):
            token_id = next(drawn) if samples else None
            is_member = request.batch is not None and request.joined < flight.batch_step
            if not is_member:
                request.land(count, samples)
            if request.is_finished:
                self._population.land_ended(request)
                continue
            self._publish(request, landing.reader)
            if token_id is None:
                continue
            if request.row_id in landing.result.faults:
                self._fail(landing, request)
            elif request.group is not None:
                self._land_beam(landing, request, request.group)
            else:
                self._land_token(landing, request, token_id)

    def _land_token(self, landing: Landing, request: Request, token_id: int) -> None:
        outcome = landing.outcome
        request.token_ids.append(token_id)
        outcome.sampled.append(request)
        outcome.token_ids.append(token_id)
        self._count_prompt(request)
        self._population.requeue(self._population.families.take(request))
        if self._ends(request, token_id, landing.check_stop):
            outcome.finished.append(request)

    def _fail(self, landing: Landing, request: Request) -> None:
        """No token could be drawn for this row; the other beams of a search fail with it."""
        fault = landing.result.faults[request.row_id]
        for member in request.group.members if request.group else [request]:
            self._population.end(member, Status.FAILED)
            landing.outcome.failed[member] = fault

    def _ends(self, request: Request, token_id: int, check_stop: StopCheck | None) -> bool:
        if token_id in request.stop_token_ids and request.num_output_tokens > request.params.min_tokens:
            listed = token_id in (request.params.stop_token_ids or ())
            self._population.end(request, Status.STOPPED, token_id if listed else None)
        elif check_stop is not None and (stop := check_stop(request, token_id)) is not None:
            self._population.end(request, Status.STOPPED, stop)
        elif len(request.token_ids) >= request.max_total_tokens:
            self._population.end(request, Status.LENGTH)
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
        self._population.families.add(group.members[0], unused)
        return beams

    def _end_search(self, landing: Landing, group: BeamGroup) -> None:
        for member, hypothesis in zip(group.members, group.search.finished, strict=True):
            member.token_ids[member.num_prompt_tokens :] = hypothesis.token_ids
            self._population.end(member, Status.STOPPED if hypothesis.is_stopped else Status.LENGTH)
            self._population.counters.generation_tokens += len(hypothesis.token_ids)
            landing.outcome.hypotheses[member] = hypothesis

    # The prefix cache

    def _publish(self, request: Request, reader: int | None) -> None:
        """Enter the blocks that have filled up and landed in the prefix cache."""
        landed = request.num_landed_tokens
        if landed < request.next_publish:
            return
        tables, hashes, size = request.tables, request.block_hashes, self._kv.config.block_size
        assert tables is not None
        if len(hashes) < landed // size:
            self._kv.hasher.extend(hashes, request.cache_root, request.token_ids, landed)
        first = request.next_publish // size - 1
        filled = hashes[first : landed // size]
        self._population.table_writes += self._kv.publish(tables, first, filled, reader)
        self._population.requeue(self._population.prefix_waits.settle(request, filled))
        request.next_publish = (landed // size + 1) * size

    def _publish_filled(self, members: list[Request], reader: int | None) -> None:
        """The same for members of the decode batch, each of which has filled exactly one block."""
        size, prefix_waits = self._kv.config.block_size, self._population.prefix_waits
        publishing = [request for request in members if request.next_publish < NEVER]
        self._hash_filled([r for r in publishing if len(r.block_hashes) * size < r.next_publish])
        hashes = [request.block_hashes[request.next_publish // size - 1] for request in publishing]
        filled = []
        for request, block_hash in zip(publishing, hashes, strict=True):
            assert request.tables is not None
            filled.append(FilledBlock(request.tables, request.next_publish // size - 1, block_hash))
            request.next_publish += size
        self._population.table_writes += self._kv.publish_each(filled, reader)
        if prefix_waits.is_awaited(hashes):
            for request, block_hash in zip(publishing, hashes, strict=True):
                self._population.requeue(prefix_waits.settle(request, [block_hash]))

    def _hash_filled(self, members: list[Request]) -> None:
        """Name the block that each of these has just filled, the first without a hash."""
        size = self._kv.config.block_size
        parents = [(request.block_hashes or (request.cache_root,))[-1] for request in members]
        blocks = [request.token_ids[request.next_publish - size : request.next_publish] for request in members]
        for request, block_hash in zip(members, self._kv.hasher.hash_each(parents, blocks), strict=True):
            request.block_hashes.append(block_hash)

    def _count_prompt(self, request: Request) -> None:
        """Count a prompt when its first token is there: once a request, whatever its choices and preemptions."""
        is_first = request.num_output_tokens == (request.group is None)
        if is_first and request.choice_index == 0:
            self._population.counters.prompt_tokens += request.num_prompt_tokens
