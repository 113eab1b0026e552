"""Messages between the server and the engine process, as msgpack.

To the engine: ``Add``, ``Abort``, ``ResetPrefixCache``, ``ListPins``, ``ListTraces``, those of ``WatchCommand``, and
``Shutdown``. From it: first ``Ready`` or ``StartFailed``, then ``News`` and ``Heartbeat``.
"""

from typing import Any

import msgspec

from octavo.core.beam_search import BeamSearchParams
from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinWish
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingLimits, SamplingParams
from octavo.core.step import Pooling
from octavo.core.structured import Constraint, Thinking
from octavo.engine.interface import EngineLimits
from octavo.engine.messages import EngineOutputs, EngineRequest


class Add(msgspec.Struct, tag="add"):
    """``request`` is an EngineRequest when written and its plain fields when read (see ``read_request``)."""

    request: Any

    @property
    def request_id(self) -> str | None:
        """Of a request that was read, if it has one, whatever else it holds."""
        found = self.request.get("request_id") if isinstance(self.request, dict) else None
        return found if isinstance(found, str) else None


class Abort(msgspec.Struct, tag="abort"):
    request_id: str


class ResetPrefixCache(msgspec.Struct, tag="reset_prefix_cache"):
    pass


class ListPins(msgspec.Struct, tag="list_pins"):
    """Release the pin ``unpin``, if any, then answer with a PinList of the same ``call_id``."""

    call_id: int
    unpin: str | None = None


class ListTraces(msgspec.Struct, tag="list_traces"):
    """Answer with a TraceList of the same ``call_id``; see EngineLoop.traces."""

    call_id: int
    request_ids: list[str] | None = None
    count: int = 0


class TakeLook(msgspec.Struct, tag="take_look"):
    """Answer with a View of the same ``call_id``; see EngineWatch.look."""

    call_id: int


class LookAtBlock(msgspec.Struct, tag="look_at_block"):
    """As TakeLook; see EngineWatch.block."""

    call_id: int
    block_id: int
    with_tokens: bool


class LookAtRequests(msgspec.Struct, tag="look_at_requests"):
    """As TakeLook; see EngineWatch.choices."""

    call_id: int
    request_ids: list[str]


class Shutdown(msgspec.Struct, tag="shutdown"):
    pass


class Ready(msgspec.Struct, tag="ready"):
    limits: EngineLimits


class StartFailed(msgspec.Struct, tag="start_failed"):
    """The engine could not be built; ``message`` is one sentence for the user."""

    message: str


class Heartbeat(msgspec.Struct, tag="heartbeat"):
    """The process is being scheduled, whatever its step is doing."""


class News(msgspec.Struct, tag="news"):
    """What one or more turns of the loop produced; ``iterations``: tokens computed in each of their steps."""

    outputs: EngineOutputs
    iterations: list[int]


WatchCommand = TakeLook | LookAtBlock | LookAtRequests
Command = Add | Abort | ResetPrefixCache | ListPins | ListTraces | WatchCommand | Shutdown
Event = Ready | StartFailed | Heartbeat | News

_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(message: Command | Event) -> bytes:
    return _encoder.encode(message)


def decode_command(data: bytes) -> Command:
    """
    Raises:
        msgspec.DecodeError: these bytes are no command.
    """
    return _command_decoder.decode(data)


def decode_event(data: bytes) -> Event:
    return _event_decoder.decode(data)


class _PlainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An EngineRequest on the wire, whose parameters hold unions that msgspec writes but does not read."""

    request_id: str
    prompt_token_ids: list[int]
    params: dict[str, Any]
    arrival_time: float
    clamp_max_tokens: bool
    priority: int
    cache_salt: str | None
    num_open_tokens: int
    beam_search: dict[str, Any] | None
    pins: list[dict[str, Any]]
    retention: dict[str, Any] | None
    start_by: float | None
    end_by: float | None
    tenant: str
    pooling: Pooling | None


def _with_constraint(params: dict[str, Any]) -> dict[str, Any]:
    """A constraint that was looked at is not looked at again: this is read between two steps."""
    asked = params.get("structured_outputs")
    read: dict[str, Any] = {"thinking": msgspec.convert(params.get("thinking"), Thinking | None)}
    if not isinstance(asked, dict) or asked.get("nesting") is None:
        return params | read
    return params | read | {"structured_outputs": msgspec.convert(asked, Constraint)}


def read_request(command: Add) -> EngineRequest:
    """The request of a decoded ``Add``.

    Raises:
        InvalidRequestError: it holds what no request can hold.
    """
    try:
        plain = msgspec.convert(command.request, _PlainRequest)
        limits = msgspec.convert(plain.params.pop("limits", {}), SamplingLimits)
        params = SamplingParams(**_with_constraint(plain.params), limits=limits)
        beams = None if plain.beam_search is None else BeamSearchParams(**plain.beam_search)
        pins = tuple(PinWish(**wish) for wish in plain.pins)
        retention = None if plain.retention is None else Retention(**plain.retention)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidRequestError(f"the request cannot be read: {error}"[:500]) from error
    read = {"params": params, "beam_search": beams, "pins": pins, "retention": retention}
    return EngineRequest(**msgspec.structs.asdict(plain) | read)
