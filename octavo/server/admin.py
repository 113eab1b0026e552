"""Routes for who runs the server, behind the admin key (spec D20): pins."""

import uuid
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinInfo, PinWish
from octavo.core.sampling_params import SamplingParams
from octavo.engine.steady_clock import steady_time
from octavo.server.answers import json_response, unless_gone
from octavo.server.body import read_request_body
from octavo.server.context import check_model, server_state
from octavo.server.endpoints import Endpoints
from octavo.server.errors import ApiError
from octavo.server.generation import Generation, collect
from octavo.server.prompts import Prompt, check_length, check_messages, encode_messages, encode_prompts, split_prompts
from octavo.server.queueing.promises import Share
from octavo.server.queueing.timing import Timing
from octavo.server.sampling import Int64
from octavo.server.state import ServerState
from octavo.server.visit import visit_of

endpoints = Endpoints("/admin")


class PinRequest(msgspec.Struct, kw_only=True):
    """A ``prompt`` (text or token ids), or ``messages`` as chat takes them, of which no answer is begun. ``ttl``:
    seconds; None: until it is deleted."""

    model: str | None = None
    prompt: Any = None
    messages: list[Any] | None = None
    ttl: float | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None
    cache_open_tokens: Int64 | None = None


@endpoints.post("/pins")
async def create_pin(request: Request) -> Response:
    """Pin a prefix; what of it is not cached is computed first."""
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, PinRequest, state.settings.limits)
    check_model(state, fields.model)
    with state.queue.enter(Share(1, 0)) as place:
        prompt = await _prompt(state, fields)
        place.settle(1, [len(prompt.token_ids)])
        generation = Generation(
            f"pin-request-{uuid.uuid4().hex}",
            visit_of(request),
            [prompt],
            SamplingParams(temperature=0.0, max_tokens=1),
            clamp_max_tokens=False,
            place=place,
            timing=Timing(steady_time()),
            cache_salt=fields.cache_salt,
            num_open_tokens=fields.cache_open_tokens or 0,
            pins=[(PinWish(len(prompt.token_ids), fields.ttl, fields.priority),)],
        )
        try:
            await unless_gone(request.receive, collect(state, generation))
        except InvalidRequestError as error:
            if error.param == "pin_prefix":  # the body of this route has none: what is to be pinned is the prompt
                error.param = "prompt"
            raise
    report = generation.pin_reports[0]
    if not report.pins:
        raise ApiError(409, f"{report.refusals[0]}.", code="pin_lost")
    return json_response(_shown(report.pins[0]))


async def _prompt(state: ServerState, fields: PinRequest) -> Prompt:
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequestError("Either prompt or messages is needed, not both.", "prompt")
    if fields.messages is None:
        items = split_prompts(state, fields.prompt, 1)
        if len(items) != 1:
            raise InvalidRequestError(f"A pin is of one prompt, got {len(items)}.", "prompt")
        return (await encode_prompts(state, items))[0]
    check_messages(state, fields.messages)
    prompt = await encode_messages(state, fields.messages, {"add_generation_prompt": False})
    check_length(state, prompt.token_ids, "messages")
    return prompt


@endpoints.get("/pins")
async def list_pins(request: Request) -> Response:
    state = server_state(request)
    state.require_ready()
    pins = (await state.engine.list_pins()).pins
    stats = state.metrics.stats
    body = {
        "object": "list",
        "data": [_shown(pin) for pin in pins],
        "blocks": stats.num_pinned_blocks,
        "quota_blocks": stats.max_pinned_blocks,
    }
    return json_response(body)


@endpoints.delete("/pins/{pin_id}")
async def delete_pin(request: Request) -> Response:
    pin_id: str = request.path_params["pin_id"]
    state = server_state(request)
    state.require_ready()
    if not (await state.engine.list_pins(unpin=pin_id)).was_found:
        raise ApiError(404, f"There is no pin {pin_id[:80]!r}; it may have ended.", code="pin_not_found")
    return json_response({"id": pin_id, "object": "pin", "deleted": True})


def _shown(pin: PinInfo) -> dict[str, Any]:
    """Times are Unix seconds; what is left of the time is there as well, for clocks that differ."""
    left = None if pin.expires_at is None else max(0.0, round(pin.expires_at - steady_time(), 3))
    return {
        "id": pin.pin_id,
        "object": "pin",
        "tokens": pin.num_tokens,
        "blocks": pin.num_blocks,
        "expires_at": pin.expires_at,
        "expires_in": left,
        "priority": pin.priority,
        "cache_salt": pin.cache_salt,
    }
