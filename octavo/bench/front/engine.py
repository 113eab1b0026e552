"""An engine without a model: each step it has the next word of every open request."""

import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from octavo.core.pin_types import PinInfo
from octavo.core.step import TokenLogprobs
from octavo.engine.interface import EngineLimits, EngineWatch, StartListener, nobody
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats, OutputDelta, RequestTimes
from octavo.engine.steady_clock import steady_time
from octavo.engine.traces import RequestTrace

MAX_TOKENS = 16384
VOCAB_SIZE = 256
MARK = "~"
"""Once in every word, and in nothing else that is sent."""
NUM_TOKEN_IDS = 64
"""The first ones are used; none of them is the mark."""
CREDIT_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class FrontEngineOptions:
    """``core``: the one that it runs on. ``opening``: pieces that come before the words of each answer.
    ``num_streams``: when idle, so many requests have to come before a step is made. ``step_seconds``: from one step to
    the next. ``credits_path``: a FIFO; each byte that is read there allows a step."""

    core: int
    opening: tuple[str, ...] = ()
    num_streams: int = 1
    step_seconds: float = 0.0
    credits_path: str | None = None


def word(number: int) -> str:
    return f" {number:05d}{MARK}"


def front_engine(options: FrontEngineOptions) -> "FrontEngine":
    """A factory that can be pickled."""
    os.sched_setaffinity(0, {options.core})
    return FrontEngine(options)


@dataclass(slots=True)
class _Stream:
    request: EngineRequest
    max_tokens: int
    arrival: float
    num_tokens: int = 0


class FrontEngine:
    """EngineLoop (octavo/engine/interface.py); requests have one choice. A first token never waits for its turn."""

    def __init__(self, options: FrontEngineOptions) -> None:
        self.limits = EngineLimits(MAX_TOKENS, 64 * MAX_TOKENS, 16, VOCAB_SIZE)
        self._options = options
        self._streams: dict[str, _Stream] = {}
        self._new: list[_Stream] = []
        self._next_step = 0.0
        self._credits = _Credits(options.credits_path) if options.credits_path else None
        self._stats = EngineStats(num_blocks=1, block_size=16)

    def add_request(self, request: EngineRequest) -> None:
        max_tokens = request.params.max_tokens
        assert max_tokens is not None, "the load says how many it wants"
        self._new.append(_Stream(request, max_tokens, steady_time()))

    def abort(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._new = [stream for stream in self._new if stream.request.request_id != request_id]

    def has_work(self) -> bool:
        if not self._streams:
            return len(self._new) >= self._options.num_streams
        return bool(self._new) or time.monotonic() >= self._next_step

    def idle_seconds(self) -> float | None:
        return max(0.0, self._next_step - time.monotonic()) if self._streams else None

    def step(self, on_start: StartListener = nobody) -> EngineOutputs:
        outputs = EngineOutputs()
        if not self.has_work():
            return outputs
        is_due = time.monotonic() >= self._next_step
        if is_due and self._credits is not None and not self._credits.take():
            return outputs
        advancing = list(self._streams.values()) if is_due else []
        if self._new:
            on_start([stream.request.request_id for stream in self._new])
            advancing += self._new
            self._streams |= {stream.request.request_id: stream for stream in self._new}
            self._new = []
        if is_due:
            self._next_step = max(self._next_step + self._options.step_seconds, time.monotonic())
        for stream in advancing:
            self._advance(stream, outputs)
        outputs.iteration_tokens = len(advancing)
        self._stats.generation_tokens += len(advancing)
        self._stats.num_steps += 1
        return outputs

    def _advance(self, stream: _Stream, outputs: EngineOutputs) -> None:
        request, number = stream.request, stream.num_tokens
        opening = self._options.opening
        delta = OutputDelta(request.request_id, 0, opening[number] if number < len(opening) else "")
        if number >= len(opening):
            delta.text = word(number - len(opening))
        delta.token_ids = [number % NUM_TOKEN_IDS]
        if request.params.logprobs is not None:
            delta.logprobs = [_logprobs(request.params.logprobs)]
        stream.num_tokens += 1
        if number:
            outputs.token_intervals.append(self._options.step_seconds)
        else:
            outputs.first_token_seconds.append(steady_time() - request.arrival_time)
            outputs.cached_shares.append(0.0)
        if stream.num_tokens == stream.max_tokens:
            delta.finish_reason = "length"
            del self._streams[request.request_id]
            outputs.finished.append(_times(stream))
        outputs.deltas.append(delta)

    def stats(self) -> EngineStats:
        self._stats.num_running = len(self._streams)
        return self._stats

    @property
    def watch(self) -> EngineWatch:
        raise NotImplementedError("there is no pool to look at")

    def reset_prefix_cache(self) -> None: ...

    def pins(self) -> list[PinInfo]:
        return []

    def unpin(self, pin_id: str) -> bool:
        return False

    def traces(self, request_ids: Sequence[str] | None, count: int) -> list[RequestTrace]:
        return []

    def close(self) -> None: ...


class _Credits:
    """Steps that may be made, as whoever reads the answers says."""

    def __init__(self, path: str) -> None:
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._left = 0

    def take(self) -> bool:
        """One; false where none comes in a while."""
        if not self._left and select.select([self._pipe], [], [], CREDIT_SECONDS)[0]:
            self._left = len(os.read(self._pipe, 4096))
        if not self._left:
            return False
        self._left -= 1
        return True


@lru_cache
def _logprobs(k: int) -> TokenLogprobs:
    return TokenLogprobs(97, -0.25, 1, tuple((97 + place, -0.25 - place) for place in range(k)))


def _times(stream: _Stream) -> RequestTimes:
    now, request = steady_time(), stream.request
    prompt = len(request.prompt_token_ids)
    return RequestTimes(
        request.request_id, 0, request.arrival_time, stream.arrival, now, now, prompt, stream.num_tokens, "length"
    )
