"""Every error leaves as an OpenAI error body: ``{"error": {"message", "type", "param", "code"}}`` (spec D13), or as an
Anthropic one where the endpoint is Anthropic's."""

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from octavo.core.errors import EngineDeadError, InvalidRequestError, RefusedByEngineError
from octavo.engine.messages import Timeout
from octavo.server.visit import visit_of
from octavo.server.watching.request_log import Refusal

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """An answer that is not a result. ``retry_after``: seconds after which another try makes sense. ``is_final``: no
    other try does, whatever clients think of the status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: int | None = None,
        is_final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.is_final = is_final


class ClientGoneError(Exception):
    """The client closed the connection; nobody reads an answer."""


_CLIENT_NAMES = {"beam_width": "n"}
"""Fields of the engine that have another name over HTTP."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


def model_not_found(name: str) -> ApiError:
    message = f"The model {name[:200]!r} is not served here; GET /v1/models lists what is."
    return ApiError(404, message, code="model_not_found", param="model")


def unavailable(message: str, retry_after: int = 5) -> ApiError:
    return ApiError(503, message, code="service_unavailable", retry_after=retry_after)


def timed_out(kind: Timeout, message: str | None, retry_after: int) -> ApiError:
    """A request that was ended by time. Waiting for too long is a queue that is too full, so it ends as that does; a
    request whose own time is over has none left for another try."""
    sentence = f"The request's time is over: {message}."
    if kind == "queue":
        return ApiError(429, sentence, code="queue_timeout", retry_after=retry_after)
    return ApiError(504, sentence, code="deadline_exceeded", is_final=True)


def engine_fault(message: str | None) -> ApiError:
    """A request that ended with an error inside the engine, through no fault of the client."""
    return ApiError(500, message or "The engine failed on this request.", code="engine_error")


def as_api_error(error: Exception) -> ApiError:
    """What a client is told about any exception; only messages meant for users are passed on."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        param = _CLIENT_NAMES.get(error.param or "", error.param)
        return ApiError(400, error.message, code=error.code, param=param)
    if isinstance(error, EngineDeadError):
        return unavailable(str(error))
    logger.error("Unexpected error while serving a request.", exc_info=error)
    return ApiError(500, "Internal error; the server's log has the details.", code="internal_error")


def error_body(error: ApiError) -> dict[str, Any]:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


MESSAGES_PATH = "/v1/messages"
"""It and what is below it speak Anthropic's API, and its errors."""

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error_body(error: ApiError) -> dict[str, Any]:
    """Anthropic's body; ``param`` and ``code`` are there as well."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": error.message, "param": error.param, "code": error.code},
    }


@contextmanager
def fields_named(names: Mapping[str, str]) -> Iterator[None]:
    """Errors raised inside name the fields as this endpoint does; ``names``: from chat's name to its own."""
    try:
        yield
    except (ApiError, InvalidRequestError) as error:
        error.param = names.get(error.param or "", error.param)
        raise


def error_response(error: ApiError, path: str) -> Response:
    """In the shape of the endpoint at ``path``."""
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.is_final:
        headers["X-Should-Retry"] = "false"  # OpenAI's clients repeat what ends with 504 by themselves
    is_anthropic = path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")
    content = msgspec.json.encode((anthropic_error_body if is_anthropic else error_body)(error))
    return Response(content, error.status, headers, media_type="application/json")


def error_handlers() -> Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]:
    """What answers a request that ends with an exception, by its class."""

    async def on_error(request: Request, error: Exception) -> Response:
        state = request.app.state.server
        if isinstance(error, InvalidRequestError) and not isinstance(error, RefusedByEngineError):
            state.metrics.count_refused("invalid")
        told = as_api_error(error)
        if request.method == "POST":
            visit = visit_of(request)
            visit.refusal = Refusal(time.time(), visit.request_id, told.status, told.code, told.message[:300])
            state.request_log.note_refusal(visit.refusal)
        return error_response(told, request.url.path)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        phrase = HTTPStatus(error.status_code).phrase
        api_error = ApiError(
            error.status_code,
            f"{request.method} {request.url.path[:200]}: {phrase}",
            code=phrase.lower().replace(" ", "_"),
        )
        response = error_response(api_error, request.url.path)
        response.headers.update(error.headers or {})
        return response

    async def on_gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=499)  # nginx's "client closed request"; never read by anyone

    return {
        ApiError: on_error,
        InvalidRequestError: on_error,
        EngineDeadError: on_error,
        HTTPException: on_http,
        ClientGoneError: on_gone,
        Exception: on_error,
    }
