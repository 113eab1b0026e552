"""Running the prompts of one HTTP request: one engine request a prompt, their deltas as one stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from octavo.core.beam_search import BeamSearchParams
from octavo.core.errors import EngineDeadError, RefusedByEngineError
from octavo.core.pin_types import PinReport, PinWish
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import Pooling
from octavo.core.tenants import DEFAULT_TENANT
from octavo.engine.coalesce import merge_delta
from octavo.engine.messages import EngineRequest, OutputDelta
from octavo.server.access.rates import Allowance
from octavo.server.errors import ApiError, engine_fault, timed_out, unavailable
from octavo.server.prompts import Prompt
from octavo.server.queueing.promises import Share
from octavo.server.queueing.queue import Place
from octavo.server.queueing.timing import Timing
from octavo.server.state import Phase, ServerState
from octavo.server.visit import Visit


@dataclass(slots=True)
class Generation:
    """What is to be generated, and the counts of it so far. Choice ``index`` of prompt ``i`` is ``i * n + index``.

    ``answer_id``: the id in the answer's body, used once; ``visit``: of whoever asks.
    ``beam_search``: as wide as ``params.n``. ``place``: in the queue, left at the end.
    ``pins``: those of each prompt, or none at all. ``allowance``: of the tenant that pays; ``param``: the field that
    the prompts come from. ``pooling``: of requests for vectors."""

    answer_id: str
    visit: Visit
    prompts: Sequence[Prompt]
    params: SamplingParams
    clamp_max_tokens: bool
    place: Place
    timing: Timing
    priority: int = 0
    cache_salt: str | None = None
    num_open_tokens: int = 0
    beam_search: BeamSearchParams | None = None
    pins: Sequence[tuple[PinWish, ...]] = ()
    retention: Retention | None = None
    tenant: str = DEFAULT_TENANT
    allowance: Allowance | None = None
    param: str = "prompt"
    pooling: Pooling | None = None
    num_completion_tokens: int = 0
    cached_tokens: dict[int, int] = field(default_factory=dict)
    pin_reports: dict[int, PinReport] = field(default_factory=dict)

    def count(self, prompt_index: int, delta: OutputDelta) -> None:
        self.num_completion_tokens += len(delta.token_ids)
        if self.allowance is not None:
            self.allowance.take_generated(len(delta.token_ids))
        if delta.index == 0:  # the prompt's own number: further choices find what the first one computed
            cached = max(self.cached_tokens.get(prompt_index, 0), delta.num_cached_tokens)
            self.cached_tokens[prompt_index] = cached
        if delta.pin_report is not None:
            self.pin_reports[prompt_index] = delta.pin_report

    def usage(self) -> dict[str, Any]:
        """Each prompt once, every choice's tokens (spec D10, D29); of what is pinned, the longest head."""
        num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self.prompts)
        details = {"cached_tokens": sum(self.cached_tokens.values())}
        if any(self.pins):
            details["pinned_tokens"] = sum(
                max((pin.num_tokens for pin in report.pins), default=0) for report in self.pin_reports.values()
            )
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": details,
        }


Items = AsyncGenerator[tuple[int, OutputDelta], None]


def run(state: ServerState, generation: Generation) -> Items:
    """(choice index, delta) until every choice of every prompt has ended. Closing the iterator aborts them all.

    Raises:
        ApiError: the engine failed on one of them, or the server is shutting down.
        InvalidRequestError, EngineDeadError: see AsyncEngineClient.generate.
    """
    state.require_ready()
    generation.visit.generation = generation
    _take_prompts(state, generation)
    return _run_one(state, generation, 0) if len(generation.prompts) == 1 else _merge(state, generation)


def _take_prompts(state: ServerState, generation: Generation) -> None:
    """The tenant's allowance pays for the prompts.

    Raises:
        ApiError, InvalidRequestError: see Allowance.take_prompt.
    """
    if generation.allowance is None:
        return
    try:
        generation.allowance.take_prompt(sum(len(prompt.token_ids) for prompt in generation.prompts), generation.param)
    except ApiError:
        state.metrics.count_refused("rate_limit")
        raise


async def _run_one(state: ServerState, generation: Generation, prompt_index: int) -> Items:
    """This is on the way of every token, so there is one generator, and no more."""
    request = _engine_request(generation, prompt_index)
    state.request_log.note_engine_id(request.request_id, generation.answer_id, generation.visit.request_id)
    state.ledger.begin(request, generation.visit)
    first_choice = prompt_index * generation.params.n
    on_start = partial(generation.place.start, prompt_index)
    try:
        with state.engine.opened(request, on_start) as stream:
            while deltas := await stream.take():
                for delta in deltas:
                    if delta.finish_reason is not None:
                        _check_ending(state, generation, request, delta)
                    generation.count(prompt_index, delta)
                    yield first_choice + delta.index, delta
    except RefusedByEngineError as error:
        state.ledger.fail(request.request_id, error.code)
        raise
    except EngineDeadError:
        state.metrics.count_lost(state.ledger.lose(request.request_id, "engine_dead"))
        raise
    finally:
        generation.place.end(prompt_index)


def _check_ending(state: ServerState, generation: Generation, request: EngineRequest, delta: OutputDelta) -> None:
    """
    Raises:
        ApiError: it is not what the client has asked for.
    """
    if delta.timeout is not None:
        share = Share(generation.params.n, len(request.prompt_token_ids))
        raise timed_out(delta.timeout, delta.error, state.queue.retry_after(share))
    if delta.finish_reason == "error":
        raise engine_fault(delta.error)
    if delta.finish_reason == "abort" and state.phase is not Phase.READY:
        raise unavailable(state.phase.value)


def _engine_request(generation: Generation, prompt_index: int) -> EngineRequest:
    return EngineRequest(
        request_id=_engine_id(generation, prompt_index),
        prompt_token_ids=generation.prompts[prompt_index].token_ids,
        params=generation.params,
        arrival_time=generation.timing.arrival,
        clamp_max_tokens=generation.clamp_max_tokens,
        priority=generation.priority,
        cache_salt=generation.cache_salt,
        num_open_tokens=generation.num_open_tokens,
        beam_search=generation.beam_search,
        pins=generation.pins[prompt_index] if generation.pins else (),
        retention=generation.retention,
        start_by=generation.timing.start_by,
        end_by=generation.timing.end_by,
        tenant=generation.tenant,
        pooling=generation.pooling,
    )


def _engine_id(generation: Generation, prompt_index: int) -> str:
    """The id that the client's answer has, so that logs and clients talk of the same."""
    return generation.answer_id if len(generation.prompts) == 1 else f"{generation.answer_id}-{prompt_index}"


async def _merge(state: ServerState, generation: Generation) -> Items:
    """Those of all prompts as they come. Each pump holds one item, so news is still merged behind a slow reader."""
    streams = [_run_one(state, generation, index) for index in range(len(generation.prompts))]
    queue: asyncio.Queue[tuple[int, OutputDelta] | Exception | None] = asyncio.Queue(maxsize=1)

    async def pump(stream: Items) -> None:
        try:
            async with aclosing(stream) as items:
                async for item in items:
                    await queue.put(item)
            await queue.put(None)
        except Exception as error:  # noqa: BLE001  (raised by the reader)
            await queue.put(error)

    pumps = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        num_open = len(pumps)
        while num_open:
            item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        generation.place.leave()


async def collect(state: ServerState, generation: Generation) -> list[OutputDelta]:
    """All choices, each as one delta, in order. Raises what ``run`` raises."""
    choices = [OutputDelta("", index) for index in range(len(generation.prompts) * generation.params.n)]
    async with aclosing(run(state, generation)) as items:
        async for index, delta in items:
            merge_delta(choices[index], delta)
    # Prompt logprobs belong to the prompt; every choice of it shows them, whichever delta brought them.
    n = generation.params.n
    for first in range(0, len(choices), n):
        group = choices[first : first + n]
        known = next((choice.prompt_logprobs for choice in group if choice.prompt_logprobs is not None), None)
        for choice in group:
            choice.prompt_logprobs = known
    return choices
