"""Messages between the server and the engine process, as msgpack.

To the engine: ``Add``, ``Abort``, ``ResetPrefixCache``, ``Shutdown``. From it: first ``Ready`` or ``StartFailed``, then
``News`` and ``Heartbeat``.
"""

from typing import Any

import msgspec

from octavo.core.beam_search import BeamSearchParams
from octavo.core.sampling_params import SamplingLimits, SamplingParams
from octavo.engine.interface import EngineLimits
from octavo.engine.messages import EngineOutputs, EngineRequest


class Add(msgspec.Struct, tag="add"):
    """``request`` is an EngineRequest when written and its plain fields when read (see ``read_request``)."""

    request: Any


class Abort(msgspec.Struct, tag="abort"):
    request_id: str


class ResetPrefixCache(msgspec.Struct, tag="reset_prefix_cache"):
    pass


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


Command = Add | Abort | ResetPrefixCache | Shutdown
Event = Ready | StartFailed | Heartbeat | News

_encoder = msgspec.msgpack.Encoder()
_command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(message: Command | Event) -> bytes:
    return _encoder.encode(message)


def decode_command(data: bytes) -> Command:
    return _command_decoder.decode(data)


def decode_event(data: bytes) -> Event:
    return _event_decoder.decode(data)


def read_request(command: Add) -> EngineRequest:
    """The request of a decoded ``Add``. Its params hold unions that msgspec writes but does not read."""
    fields = dict(command.request)
    params = dict(fields.pop("params"))
    limits = SamplingLimits(**params.pop("limits"))
    beams = fields.pop("beam_search")
    return EngineRequest(
        params=SamplingParams(**params, limits=limits),
        beam_search=None if beams is None else BeamSearchParams(**beams),
        **fields,
    )
