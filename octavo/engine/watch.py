"""For those who look at the pool: what it holds between two steps, and what has happened since they last looked.

While nobody looks nothing is written down. Who looks once is taken to look again for WATCH_SECONDS.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from octavo.core.block_map import block_map
from octavo.core.request import Request, Status
from octavo.core.scheduler import Scheduler
from octavo.core.step import StepPlan
from octavo.engine.looks import (
    BlockHolder,
    BlockLook,
    ChoiceLook,
    EventLook,
    Look,
    Place,
    RequestLook,
    StepLook,
)
from octavo.engine.open_requests import OpenRequests
from octavo.engine.traces import FlatEvent, as_event

WATCH_SECONDS = 10.0
MAX_REQUESTS = 512
MAX_HOLDERS = 64
MAX_STEPS = 512
MAX_EVENTS = 512


class Watch:
    """Of one engine; called between its steps, by its thread."""

    def __init__(self, scheduler: Scheduler, requests: OpenRequests, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._requests = requests
        self._clock = clock
        self._until = 0.0
        self._steps: deque[StepLook] = deque(maxlen=MAX_STEPS)
        self._events: deque[tuple[str, FlatEvent]] = deque(maxlen=MAX_EVENTS)
        self.is_on = False
        """Has anybody looked of late?"""

    def note_step(self, plan: StepPlan, seconds: float) -> None:
        """A step has landed while ``is_on``; it took ``seconds``."""
        now = self._clock()
        if now > self._until:
            self._turn(on=False)
            return
        num_prompt, num_decode = _split(plan)
        self._steps.append(StepLook(plan.step_id, now, seconds, num_prompt, num_decode, len(plan.row_ids)))

    def look(self) -> Look:
        began = self._clock()
        self._until = began + WATCH_SECONDS
        if not self.is_on:
            self._turn(on=True)
        scheduler, kv = self._scheduler, self._scheduler.kv
        look = Look(
            time=began,
            num_steps=scheduler.counters.num_steps,
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            token_budget=scheduler.config.max_num_batched_tokens,
            max_num_seqs=scheduler.config.max_num_seqs,
            block_size=kv.config.block_size,
            blocks=block_map(kv.pool, kv.keeping.pins.references),
            requests=[self._shown(request, place) for request, place in islice(self._places(), MAX_REQUESTS)],
            steps=list(self._steps),
            events=[EventLook(request_id, as_event(*flat)) for request_id, flat in self._events],
        )
        self._steps.clear()
        self._events.clear()
        look.seconds = self._clock() - began
        return look

    def block(self, block_id: int, with_tokens: bool) -> BlockLook | None:
        """None where there is no such block. ``with_tokens``: tell the tokens in it, too."""
        kv = self._scheduler.kv
        if not 0 <= block_id < kv.pool.num_blocks:
            return None
        held = list(self._holding(block_id))
        size = kv.config.block_size
        filled = [max(0, min(size, request.num_landed_tokens - index * size)) for request, _, index in held]
        name = kv.pool.names[block_id]
        token_ids = list[int]()
        if with_tokens and held:
            request, _, index = held[filled.index(max(filled))]
            token_ids = request.token_ids[index * size : min((index + 1) * size, request.num_landed_tokens)]
        elif with_tokens and name is not None:
            token_ids = kv.cached_token_ids(name)
        return BlockLook(
            block_id,
            kv.pool.ref_counts[block_id],
            kv.keeping.pins.references.get(block_id, 0),
            name is not None,
            max(filled, default=size if name is not None else 0),
            [self._holder(*each) for each in held[:MAX_HOLDERS]],
            token_ids,
        )

    def choices(self, request_ids: Iterable[str]) -> list[ChoiceLook]:
        """Of these requests the choices that have not ended, with their tables."""
        places = dict(self._places())
        sequences = chain.from_iterable(self._requests.sequences.get(each, ()) for each in request_ids)
        return [self._choice(each, places[each]) for each in sequences]

    def _turn(self, on: bool) -> None:
        self.is_on = on
        self._steps.clear()
        self._events.clear()
        self._requests.decisions.tell(self._events if on else None)

    def _places(self) -> Iterator[tuple[Request, Place]]:
        population = self._scheduler.population
        yield from ((request, "running") for request in population.running)
        for request in population.waiting:
            yield request, "preempted" if request.status is Status.PREEMPTED else "waiting"
        others: Sequence[tuple[Iterable[Request], Place]] = (
            (population.prefix_waits, "prefix"),
            (population.families, "family"),
            (population.held_long, "held"),
        )
        for requests, place in others:
            yield from ((request, place) for request in requests)

    def _shown(self, request: Request, place: Place) -> RequestLook:
        return RequestLook(
            self._requests.choices[request].request_id,
            request.choice_index,
            place,
            request.tenant,
            request.priority,
            request.num_prompt_tokens,
            request.num_cached_tokens or 0,
            request.num_computed_tokens,
            request.num_output_tokens,
            0 if request.tables is None else sum(map(len, request.tables.live_groups)),
            request.max_total_tokens,
        )

    def _choice(self, sequence: Request, place: Place) -> ChoiceLook:
        tables = [] if sequence.tables is None else [list(table) for table in sequence.tables.groups]
        return ChoiceLook(self._shown(sequence, place), tables)

    def _holding(self, block_id: int) -> Iterator[tuple[Request, int, int]]:
        """Who has the block, in which layer group, as which of its blocks."""
        for request in self._scheduler.running:
            assert request.tables is not None
            for group, table in enumerate(request.tables.groups):
                if block_id in table:
                    yield request, group, table.index(block_id)

    def _holder(self, request: Request, group: int, index: int) -> BlockHolder:
        return BlockHolder(self._requests.choices[request].request_id, request.choice_index, group, index)


def _split(plan: StepPlan) -> tuple[int, int]:
    """Tokens that a plan computes of prompts, but for last ones that come alone, and those of answers with drafts."""
    num_tokens, drafting = plan.num_tokens, {drafts.row_id for drafts in plan.drafts}
    if num_tokens == len(plan.row_ids) and all(plan.samples):
        return 0, num_tokens
    rows = zip(plan.row_ids, plan.counts, plan.samples, strict=True)
    num_prompt = sum(count for row_id, count, samples in rows if (count > 1 or not samples) and row_id not in drafting)
    return num_prompt, num_tokens - num_prompt
