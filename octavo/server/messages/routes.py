"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients use them."""

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.answers import answered, json_response, named_events
from octavo.server.body import read_request_body
from octavo.server.chat.opened import opened_chat
from octavo.server.chat.tool_choice import shown_tools
from octavo.server.chat.tool_messages import with_parsed_arguments
from octavo.server.context import check_model, server_state
from octavo.server.endpoints import Endpoints
from octavo.server.errors import anthropic_error_body, fields_named
from octavo.server.messages.answer import MessageAnswer
from octavo.server.messages.request import (
    FIELD_NAMES,
    CountRequest,
    MessagesRequest,
    as_chat_prompt,
    as_chat_request,
)
from octavo.server.prompts import check_messages, encode_messages, template_options

endpoints = Endpoints()

EVENTS = named_events(anthropic_error_body)


@endpoints.post("/v1/messages")
async def create_message(request: Request) -> Response:
    """Answer a conversation."""
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, MessagesRequest, state.settings.limits)
    with fields_named(FIELD_NAMES):
        async with opened_chat(request, state, as_chat_request(fields), "msg") as chat:
            answer = MessageAnswer(state, chat)
            return await answered(request, answer, fields.stream, EVENTS)


@endpoints.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a conversation has."""
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, CountRequest, state.settings.limits)
    check_model(state, fields.model)
    chat = as_chat_prompt(fields)
    messages = chat.messages or []
    check_messages(state, messages)
    tools = [] if chat.tool_choice == "none" else shown_tools(state, chat.tools or [])
    prompt = await encode_messages(state, with_parsed_arguments(messages), template_options(chat, tools))
    return json_response({"input_tokens": len(prompt.token_ids)})
