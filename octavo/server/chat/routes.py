"""POST /v1/chat/completions."""

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.answers import answered
from octavo.server.body import read_request_body
from octavo.server.chat.answer import RESPONSE_ROLE, ChatAnswer
from octavo.server.chat.opened import opened_chat
from octavo.server.chat.reading import Messages
from octavo.server.chat.request import ChatRequest
from octavo.server.context import server_state
from octavo.server.endpoints import Endpoints
from octavo.server.prompts import message_text

endpoints = Endpoints()


@endpoints.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    state = server_state(request)
    state.require_ready()
    fields = await read_request_body(request, ChatRequest, state.settings.limits)
    async with opened_chat(request, state, fields, "chatcmpl") as chat:
        answer = ChatAnswer(state, fields, chat.generation, chat.reply_format, _echoed_text(fields, chat.messages))
        return await answered(request, answer, fields.stream)


def _echoed_text(fields: ChatRequest, messages: Messages) -> str:
    """With ``echo`` and a last message of the assistant's, the answer starts with that message's text."""
    return message_text(messages[-1]) if fields.echo and messages[-1].get("role") == RESPONSE_ROLE else ""
