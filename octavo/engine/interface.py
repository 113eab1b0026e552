"""The engine as its users see it: in the process of ``LLM``, or in one of its own behind ``engine.client``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.core.pin_types import PinInfo
from octavo.engine.looks import BlockLook, ChoiceLook, Look
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats
from octavo.engine.traces import RequestTrace

StartListener = Callable[[list[str]], None]
"""Told the ids of requests that wait no longer, just before the first step that computes something of them."""


def nobody(_request_ids: list[str]) -> None:
    """Implements ``StartListener``."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Numbers that the door needs: longest prompt plus output, and the pool's size in tokens."""

    max_model_len: int
    kv_cache_tokens: int
    block_size: int
    vocab_size: int

    @property
    def bound_by(self) -> str:
        """What ``max_model_len`` comes from, for error messages."""
        return "what the KV pool holds" if self.max_model_len >= self.kv_cache_tokens else "max_model_len"


class EngineWatch(Protocol):
    """What somebody sees who looks at the pool. Who looks costs the engine time, and nobody else does."""

    def look(self) -> Look: ...

    def block(self, block_id: int, with_tokens: bool) -> BlockLook | None:
        """None where there is no such block. ``with_tokens``: tell the tokens in it, too."""
        ...

    def choices(self, request_ids: Iterable[str]) -> list[ChoiceLook]:
        """Of these requests the choices that have not ended, with their tables."""
        ...


class EngineLoop(Protocol):
    """The loop itself; one thread calls it. ``steady_time`` and the random source are passed in when it is made."""

    limits: EngineLimits

    @property
    def watch(self) -> EngineWatch:
        """For those who look at the pool."""
        ...

    def add_request(self, request: EngineRequest) -> None:
        """Accept a request. One that can never run is answered by a delta with finish_reason "error" and
        ``invalid_param`` set in the next outputs; this never raises."""
        ...

    def abort(self, request_id: str) -> None:
        """End every choice of a request with finish_reason "abort", or as ended by its time, if that is over; unknown
        ids are ignored."""
        ...

    def has_work(self) -> bool: ...

    def idle_seconds(self) -> float | None:
        """When nothing comes in, how long until there is work again, since a pin ends; None: for ever."""
        ...

    def step(self, on_start: StartListener = nobody) -> EngineOutputs:
        """Plan a step, run it, report what came of it. Never raises for the fault of one request."""
        ...

    def stats(self) -> EngineStats: ...

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that is not pinned."""
        ...

    def pins(self) -> list[PinInfo]: ...

    def unpin(self, pin_id: str) -> bool:
        """End a pin before its time; false if there is none of this id."""
        ...

    def traces(self, request_ids: Sequence[str] | None, count: int) -> list[RequestTrace]:
        """What was decided about these requests, as far as it is known; None: about the ``count`` that came last."""
        ...

    def close(self) -> None:
        """End every request and leave nothing undone. Nothing is called after this."""
        ...
