"""POST /v1/responses: the part of OpenAI's Responses API that keeps nothing."""

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.answers import answered, named_events
from octavo.server.body import read_request_body
from octavo.server.chat.opened import opened_chat
from octavo.server.context import server_state
from octavo.server.endpoints import Endpoints
from octavo.server.errors import error_body, fields_named
from octavo.server.responses.answer import ResponseAnswer
from octavo.server.responses.request import FIELD_NAMES, ResponsesRequest, as_chat_request

endpoints = Endpoints()

EVENTS = named_events(lambda error: {"type": "error"} | error_body(error))


@endpoints.post("/v1/responses")
async def create_response(request: Request) -> Response:
    """Answer a text or a conversation."""
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, ResponsesRequest, state.settings.limits)
    with fields_named(FIELD_NAMES):
        async with opened_chat(request, state, as_chat_request(fields), "resp") as chat:
            answer = ResponseAnswer(state, fields, chat)
            return await answered(request, answer, fields.stream, EVENTS)
