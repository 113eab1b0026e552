"""GET /debug/pool: what the pool's blocks are doing, and who has them; behind the admin key (spec D20)."""

from base64 import b64encode
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.core.errors import InvalidRequestError
from octavo.engine.looks import BlockLook, ChoiceLook, EventLook
from octavo.engine.traces import EVENT_NUMBERS
from octavo.server.answers import json_response
from octavo.server.context import server_state
from octavo.server.endpoints import Endpoints
from octavo.server.errors import ApiError
from octavo.server.plain_numbers import plain_whole_number
from octavo.server.prompts import in_text_thread
from octavo.server.state import ServerState
from octavo.server.watching.pool_shapes import PoolBlock, PoolBlockHolder, PoolBody, PoolChoice, PoolEvent, PoolRequest

endpoints = Endpoints("/debug/pool")


@endpoints.get("")
async def show_pool(request: Request) -> Response:
    """``after``: the number of the last look that the asker has seen; steps and events since then are told."""
    state = server_state(request)
    state.require_ready()
    after = _number(request.query_params.get("after", "0"), "after")
    watch = state.pool_watch
    look = await watch.look()
    if after > watch.num_looks:
        after = 0  # of a server that ran before this one
    body = PoolBody(
        look=watch.num_looks,
        interval=watch.interval,
        time=look.time,
        model=state.settings.served_model_name,
        steps_so_far=look.num_steps,
        running=look.num_running,
        waiting=look.num_waiting,
        token_budget=look.token_budget,
        max_num_seqs=look.max_num_seqs,
        block_size=look.block_size,
        num_blocks=len(look.blocks),
        blocks=b64encode(look.blocks).decode(),
        requests=look.requests,
        steps=watch.steps_after(after),
        events=[_event(state, each) for each in watch.events_after(after)],
    )
    return json_response(body)


@endpoints.get("/blocks/{block_id}")
async def show_block(request: Request) -> Response:
    block_id: str = request.path_params["block_id"]
    state = server_state(request)
    state.require_ready()
    number = plain_whole_number(block_id)
    block = None
    if number is not None:
        block = await state.engine.look_at_block(number, state.settings.dashboard_text)
    if block is None:
        raise ApiError(404, f"There is no block {block_id[:80]!r} in the pool.", code="block_not_found")
    return json_response(await in_text_thread(state, lambda: _block(state, block)))


@endpoints.get("/requests/{request_id:path}")
async def show_choices(request: Request) -> Response:
    """The block tables of a request's open choices; ``request_id`` as in /debug/requests."""
    request_id: str = request.path_params["request_id"]
    state = server_state(request)
    state.require_ready()
    choices = await state.engine.look_at_requests(state.request_log.engine_ids(request_id))
    return json_response(PoolRequest(id=request_id, choices=[_choice(each) for each in choices]))


def _number(text: str, param: str) -> int:
    number = plain_whole_number(text)
    if number is None:
        raise InvalidRequestError(f"{param} must be a whole number, got {text[:80]!r}.", param)
    return number


def _event(state: ServerState, look: EventLook) -> PoolEvent:
    event = look.event
    return PoolEvent(
        request=look.request_id,
        x_request_id=state.request_log.trace_id(look.request_id),
        event=event.kind,
        time=event.time,
        step=event.step,
        choice=event.choice,
        numbers=dict(zip(EVENT_NUMBERS[event.kind], event.numbers, strict=True)),
        reason=event.note,
    )


def _block(state: ServerState, block: BlockLook) -> PoolBlock:
    shown: dict[str, Any] = {}
    if state.settings.dashboard_text:
        shown = {"token_ids": block.token_ids, "text": state.tokenizer.decode(block.token_ids)}
    return PoolBlock(
        id=block.block_id,
        references=block.num_references,
        pins=block.num_pins,
        in_prefix_cache=block.is_named,
        filled=block.num_filled,
        holders=[
            PoolBlockHolder(request=each.request_id, choice=each.choice, group=each.group, block=each.logical_block)
            for each in block.holders
        ],
        **shown,
    )


def _choice(choice: ChoiceLook) -> PoolChoice:
    return PoolChoice(choice=choice.look.choice, request=choice.look, tables=choice.tables)
