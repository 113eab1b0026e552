"""An engine without a model: it types SCRIPT, one byte a token. For the tests of all that surrounds an engine."""

import codecs
import itertools
import logging
import math
import random
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from octavo.core.errors import ConfigurationError, TooLongError
from octavo.core.pin_types import PinInfo
from octavo.core.step import TokenLogprobs
from octavo.engine.deadlines import Deadlines, timeout_message
from octavo.engine.interface import EngineLimits, StartListener, nobody
from octavo.engine.looks import BlockLook, ChoiceLook, Look, RequestLook, StepLook
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats, OutputDelta, RequestTimes
from octavo.engine.steady_clock import steady_time
from octavo.engine.traces import RequestTrace
from tests.support.byte_tokenizer import EOS

logger = logging.getLogger(__name__)

SCRIPT = "alpha beta gamma délta 漢字 😀 end. "
"""Choice i of a request starts i words in; the script repeats for ever."""

MODEL = "fake"

CRASH, FAULT, ENDS = "!crash", "!fault", "!ends"
"""Prompts that contain these: the step raises; the request fails by itself; EOS comes after five tokens."""

_TYPES = re.compile(r"!types (\S+) (.*)\nassistant: $", re.DOTALL)


def typing(text: str, cut: str | int) -> str:
    """The content of a last message to which the answer is ``text``, a token at a time: ``cut`` "each" has one
    character a token, "whole" the text in one, and a number seeds random cuts."""
    return f"!types {cut} {text}"


def _pieces(prompt: str) -> list[str] | None:
    asked = _TYPES.search(prompt)
    if asked is None:
        return None
    cut, text = asked.groups()
    return cut_randomly(text, int(cut)) if cut.isdecimal() else [text] if cut == "whole" else list(text)


def cut_randomly(text: str, seed: int) -> list[str]:
    rng = random.Random(seed)
    count = rng.randrange(len(text))
    edges = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(count))})
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def script_tokens(choice: int, count: int) -> list[int]:
    """The first ``count`` tokens that choice ``choice`` types."""
    words = SCRIPT.split(" ")
    start = len(" ".join(words[:choice]).encode()) + (1 if choice else 0)
    return list(itertools.islice(itertools.cycle(SCRIPT.encode()), start, start + count))


@dataclass(frozen=True)
class FakeEngineOptions:
    """``step_seconds``: what each step takes; ``close_seconds``: what is to be done at the end. ``start_error``: the
    sentence with which starting fails."""

    max_model_len: int = 512
    max_num_seqs: int = 4
    step_seconds: float = 0.0
    start_seconds: float = 0.0
    close_seconds: float = 0.0
    start_error: str | None = None


def fake_engine(options: FakeEngineOptions) -> "FakeEngine":
    """A factory that can be pickled."""
    time.sleep(options.start_seconds)
    if options.start_error is not None:
        raise ConfigurationError(options.start_error)
    return FakeEngine(options)


@dataclass
class _Choice:
    request: EngineRequest
    index: int
    max_tokens: int
    prompt: str
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    sent: int = 0
    pieces: list[str] | None = None
    scheduled: float | None = None
    first_token: float | None = None


class FakeWatch:
    """EngineWatch of the fake engine: the running choices have a block each."""

    def __init__(self, stats: EngineStats, running: Sequence[_Choice]) -> None:
        self._stats = stats
        self._running = running

    def look(self) -> Look:
        blocks = bytes([2] * len(self._running)).ljust(self._stats.num_blocks, b"\0")
        requests = [_look(choice) for choice in self._running]
        steps = [StepLook(self._stats.num_steps, steady_time(), 0.01, 0, len(requests), len(requests))]
        return Look(steady_time(), self._stats.num_steps, len(requests), 0, 64, 4, 16, blocks, requests, steps, [])

    def block(self, block_id: int, with_tokens: bool) -> BlockLook | None:
        if block_id >= self._stats.num_blocks:
            return None
        return BlockLook(block_id, 0, 0, False, 0, [], [104, 105] if with_tokens else [])

    def choices(self, request_ids: Iterable[str]) -> list[ChoiceLook]:
        wanted = set(request_ids)
        running = enumerate(self._running)
        return [ChoiceLook(_look(each), [[at]]) for at, each in running if each.request.request_id in wanted]


def _look(choice: _Choice) -> RequestLook:
    request, num_prompt, num_generated = choice.request, len(choice.request.prompt_token_ids), len(choice.tokens)
    counts = num_prompt, 0, num_prompt + num_generated, num_generated, 1, num_prompt + choice.max_tokens
    return RequestLook(request.request_id, choice.index, "running", "default", 0, *counts)


class FakeEngine:
    """EngineLoop (octavo/engine/interface.py); a block is never shared, choices wait for one of max_num_seqs places."""

    def __init__(self, options: FakeEngineOptions) -> None:
        self.limits = EngineLimits(options.max_model_len, 4 * options.max_model_len, 16, 264)
        self._options = options
        self._waiting: list[_Choice] = []
        self._running: list[_Choice] = []
        self._outputs = EngineOutputs()
        self._deadlines = Deadlines()
        self._stats = EngineStats(num_blocks=4 * options.max_model_len // 16, block_size=16)

    def add_request(self, request: EngineRequest) -> None:
        logger.info("the fake engine has got request %s", request.request_id)
        room = self.limits.max_model_len - len(request.prompt_token_ids)
        wanted = request.params.max_tokens
        if wanted is not None and wanted > room and not request.clamp_max_tokens:
            message = f"max_tokens is {wanted}; {room} fit."
            self._stats.rejected["too_long"] = self._stats.rejected.get("too_long", 0) + 1
            self._outputs.deltas.append(
                OutputDelta(
                    request.request_id,
                    0,
                    finish_reason="error",
                    error=message,
                    invalid_param="max_tokens",
                    invalid_code=TooLongError.code,
                )
            )
            return
        self._stats.prompt_tokens += len(request.prompt_token_ids)
        prompt = bytes(i for i in request.prompt_token_ids if i < 256).decode(errors="replace")
        for index in range(request.params.n):
            choice = _Choice(request, index, min(wanted or room, room), prompt, pieces=_pieces(prompt))
            self._waiting.append(choice)
        self._deadlines.add(request)

    def abort(self, request_id: str) -> None:
        self._end_overdue()
        for queue in (self._waiting, self._running):
            for choice in [each for each in queue if each.request.request_id == request_id]:
                queue.remove(choice)
                self._stats.aborted += 1
                self._end(choice, OutputDelta(request_id, choice.index), "abort")

    def _end_overdue(self) -> None:
        now = steady_time()
        for request, kind in self._deadlines.take_overdue(now):
            waits = request in [choice.request for choice in self._waiting]
            if not waits and kind == "queue":
                continue
            self._stats.timed_out[kind] = self._stats.timed_out.get(kind, 0) + 1
            for choice in [*self._waiting, *self._running]:
                if choice.request is request:
                    (self._waiting if choice in self._waiting else self._running).remove(choice)
                    error = timeout_message(request, kind, now)
                    delta = OutputDelta(request.request_id, choice.index, error=error, timeout=kind)
                    self._end(choice, delta, "error")

    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def idle_seconds(self) -> float | None:
        return None

    def pins(self) -> list[PinInfo]:
        return []

    def unpin(self, pin_id: str) -> bool:
        return False

    def traces(self, request_ids: Sequence[str] | None, count: int) -> list[RequestTrace]:
        return []

    @property
    def watch(self) -> FakeWatch:
        return FakeWatch(self._stats, self._running)

    def step(self, on_start: StartListener = nobody) -> EngineOutputs:
        self._end_overdue()
        started: list[str] = []
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            choice = self._waiting.pop(0)
            choice.scheduled = steady_time()
            self._running.append(choice)
            started.append(choice.request.request_id)
        if started:
            on_start(started)
        if self._running:
            time.sleep(self._options.step_seconds)
            self._stats.num_steps += 1
        for choice in list(self._running):
            self._advance(choice)
        outputs, self._outputs = self._outputs, EngineOutputs()
        return outputs

    def stats(self) -> EngineStats:
        stats = self._stats
        stats.num_running, stats.num_waiting = len(self._running), len(self._waiting)
        stats.num_active_blocks = len(self._running)
        stats.num_free_blocks = stats.num_blocks - stats.num_active_blocks
        return stats

    def close(self) -> None:
        time.sleep(self._options.close_seconds)

    def reset_prefix_cache(self) -> None:
        self._stats.num_cached_blocks = 0

    def _advance(self, choice: _Choice) -> None:
        if CRASH in choice.prompt:
            raise RuntimeError("the step was told to crash")
        delta = OutputDelta(choice.request.request_id, choice.index, num_cached_tokens=3)
        if FAULT in choice.prompt:
            delta.error = "the request was told to fail"
            self._end(choice, delta, "error")
            return
        if choice.request.pooling is not None:
            ids = choice.request.prompt_token_ids
            delta.embedding = [float(sum(ids)), float(len(ids)), 3.0, 4.0]
        if choice.pieces is not None:
            self._type(choice, choice.pieces, delta)
            return
        params = choice.request.params
        self._prompt_logprobs(choice, delta)
        ends = ENDS in choice.prompt and len(choice.tokens) == 5
        token = EOS if ends else script_tokens(choice.index, len(choice.tokens) + 1)[-1]
        self._count_token(choice, token)
        delta.token_ids = [token]
        if params.logprobs is not None:
            delta.logprobs = [fake_logprobs(token, len(choice.tokens), params.logprobs)]
        if not ends:
            choice.text += choice.decoder.decode(bytes([token]))
        stop = next((each for each in params.stops if each in choice.text), None)
        if stop is not None:
            choice.text = choice.text[: choice.text.index(stop)]
            delta.stop_reason = stop
        reason = "stop" if ends or stop else "length" if len(choice.tokens) == choice.max_tokens else None
        if reason is not None and stop is None:
            choice.text += choice.decoder.decode(b"", True)
        if not params.stops or reason is not None:
            delta.text, choice.sent = choice.text[choice.sent :], len(choice.text)
        if reason is None:
            self._outputs.deltas.append(delta)
        else:
            self._end(choice, delta, reason)

    def _type(self, choice: _Choice, pieces: list[str], delta: OutputDelta) -> None:
        place = len(choice.tokens)
        has_ended = place == len(pieces)
        delta.text = "" if has_ended else pieces[place]
        delta.token_ids = [EOS if has_ended else 65]
        self._count_token(choice, delta.token_ids[0])
        if has_ended or len(choice.tokens) == choice.max_tokens:
            self._end(choice, delta, "stop" if has_ended else "length")
        else:
            self._outputs.deltas.append(delta)

    def _prompt_logprobs(self, choice: _Choice, delta: OutputDelta) -> None:
        k = choice.request.params.prompt_logprobs
        if k is not None and not choice.tokens:
            ids = choice.request.prompt_token_ids
            delta.prompt_logprobs = [None, *(fake_logprobs(token, i, k) for i, token in enumerate(ids[1:]))]

    def _count_token(self, choice: _Choice, token: int) -> None:
        now = steady_time()
        if choice.first_token is None:
            choice.first_token = now
            self._outputs.first_token_seconds.append(now - choice.request.arrival_time)
            self._outputs.cached_shares.append(0.0)
        else:
            self._outputs.token_intervals.append(self._options.step_seconds)
        choice.tokens.append(token)
        self._outputs.iteration_tokens += 1
        self._stats.generation_tokens += 1

    def _end(self, choice: _Choice, delta: OutputDelta, reason: str) -> None:
        delta.finish_reason = reason
        self._outputs.deltas.append(delta)
        if not any(choice.request is other.request for other in [*self._waiting, *self._running] if other != choice):
            self._deadlines.remove(choice.request.request_id)
        if choice in self._running:
            self._running.remove(choice)
        self._outputs.finished.append(
            RequestTimes(
                choice.request.request_id,
                choice.index,
                choice.request.arrival_time,
                choice.scheduled,
                choice.first_token,
                steady_time(),
                len(choice.request.prompt_token_ids),
                len(choice.tokens),
                reason,
            )
        )


def fake_logprobs(token: int, position: int, k: int) -> TokenLogprobs:
    """The best tokens are A, B, C ... at -0.5, -1.5 ..., the second impossible at odd positions; ``token`` is at -0.25
    where it is the best one, or at -7 and in no list.
    """
    top = [(65 + i, -math.inf if i == 1 and position % 2 else -0.5 - i) for i in range(k)]
    top.sort(key=lambda pair: -pair[1])
    if position % 3:
        return TokenLogprobs(token, -0.25, 1, tuple([(token, -0.25), *top][:k]))
    return TokenLogprobs(token, -7.0, 40, tuple(top))
