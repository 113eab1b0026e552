"""The engine in this process: ``LLM(model).generate(prompts, params)``, as in vLLM."""

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, Self, get_args

from octavo.asking import (
    EMBEDDING_PARAMS,
    PIN_PARAMS,
    Message,
    Term,
    beam_results,
    check_beam_params,
    embedding_result,
    ids_to_pin,
    make_request,
    pin_made,
    whole_prompt_wish,
    with_priorities,
)
from octavo.build import build_engine, build_tokenizer
from octavo.core.beam_search import BeamSearchParams
from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinInfo
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import Pooling
from octavo.engine.engine import Engine
from octavo.engine.intake import check_has_salt
from octavo.engine.interrupts import interrupts_wait
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats, OutputDelta
from octavo.engine_args import EngineArgs
from octavo.loading.interface import Tokenizer
from octavo.loading.system_prefix import num_system_tokens
from octavo.outputs import BeamSearchOutput, EmbeddingRequestOutput, RequestOutput, raise_for
from octavo.progress import CallProgress
from octavo.prompt import Prompt, as_token_ids, listed_prompts
from octavo.settings import read_settings

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A model with its engine. Keyword arguments are those of ``EngineArgs``.

    Not to be used from several threads at once. Where a call takes ``cache_salt``, its prompts share cached tokens with
    those of the same salt only, but for the first ``cache_open_tokens`` of each, which are shared with all;
    ``retention`` says how long the prefix cache keeps what the call leaves in it; and after ``timeout`` seconds, where
    it is given, what has not ended by then is ended between two steps, and the call raises a ``TimedOutError``.

    Raises:
        ConfigurationError: the model or the settings cannot work.
    """

    def __init__(self, model: str | PathLike[str] = EngineArgs.model, **engine_args: Any) -> None:
        self._args = read_settings({"model": model} | engine_args)
        self._tokenizer = build_tokenizer(self._args)
        self._engine = build_engine(self._args, self._tokenizer)
        self._ids = itertools.count()
        self._streams: dict[str, deque[OutputDelta]] = {}
        self._dropped: deque[str] = deque()
        """Requests to abort as soon as the engine is not at work."""
        self._is_at_work = False
        self._is_closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        cache_salt: str | None = None,
        cache_open_tokens: int = 0,
        retention: Retention | None = None,
        priority: int | Sequence[int] = 0,
        timeout: float | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts, all together; answers come in the order of the prompts.

        ``prompts``: a text, a list of token ids, or a list of either. ``params``: one for all, or one a prompt; None
        is ``SamplingParams()`` with ``max_tokens`` shortened to the room there is. ``priority``: one for all, or one a
        prompt; the lowest goes first, where the policy is that (``scheduling_policy``).

        Raises:
            InvalidRequestError: one of them can never be served; the others are aborted.
        """
        term, listed = Term.of(timeout), listed_prompts(prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in listed]
        ids = [self._encode(prompt) for prompt in listed]
        each_params, open_tokens = _spread(params, len(ids)), [cache_open_tokens] * len(ids)
        requests = self._requests(ids, each_params, cache_salt, open_tokens, retention, term)
        return self._run(texts, with_priorities(requests, priority))

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        cache_salt: str | None = None,
        cache_open_tokens: int = 0,
        retention: Retention | None = None,
        timeout: float | None = None,
    ) -> list[BeamSearchOutput]:
        """The ``params.beam_width`` best completions of each prompt, all searched together; answers come in the order
        of the prompts, the results of each best first.

        Raises:
            InvalidRequestError: one of them can never be served; the others are aborted.
        """
        term = Term.of(timeout)
        check_beam_params(params)
        ids = [self._encode(prompt) for prompt in listed_prompts(prompts)]
        sampling, open_tokens = [SamplingParams()] * len(ids), [cache_open_tokens] * len(ids)
        requests = self._requests(ids, sampling, cache_salt, open_tokens, retention, term)
        outputs = self._run([None] * len(ids), [replace(request, beam_search=params) for request in requests])
        return [beam_results(output, self._tokenizer) for output in outputs]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        cache_salt: str | None = None,
        cache_open_tokens: int | Literal["system"] = 0,
        retention: Retention | None = None,
        priority: int | Sequence[int] = 0,
        timeout: float | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template.

        ``template_options``: see ``Tokenizer.apply_chat_template``. ``cache_open_tokens`` "system": those of the
        leading system message (``num_system_tokens``).

        Raises:
            InvalidRequestError: one of them can never be served; the others are aborted.
        """
        term = Term.of(timeout)
        check_has_salt(cache_open_tokens, cache_salt)
        given: Any = messages
        is_one = not isinstance(given, Sequence) or not given or isinstance(given[0], Mapping | str)
        conversations: list[Any] = [given] if is_one else list(given)
        for talk in conversations:
            if not isinstance(talk, Sequence) or isinstance(talk, str):
                raise InvalidRequestError(f"a conversation must be a list of messages, got {talk!r:.80}", "messages")
        ids = [self._tokenizer.apply_chat_template(talk, **template_options) for talk in conversations]
        open_tokens = [
            num_system_tokens(self._tokenizer, talk, token_ids) if cache_open_tokens == "system" else cache_open_tokens
            for talk, token_ids in zip(conversations, ids, strict=True)
        ]
        requests = self._requests(ids, _spread(params, len(ids)), cache_salt, open_tokens, retention, term)
        return self._run([None] * len(ids), with_priorities(requests, priority))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling = "mean",
        cache_salt: str | None = None,
        timeout: float | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """A vector of each prompt, of length 1, in their order: the mean of the hidden states of all its tokens, or
        that of the last one. The bits are those of /v1/embeddings.

        Raises:
            InvalidRequestError: one of them can never be served; the others are aborted.
        """
        if pooling not in get_args(Pooling):
            raise InvalidRequestError(f"pooling must be one of {get_args(Pooling)}, got {pooling!r:.80}", "pooling")
        term = Term.of(timeout)
        ids = [self._encode(prompt) for prompt in listed_prompts(prompts)]
        requests = self._requests(ids, [EMBEDDING_PARAMS] * len(ids), cache_salt, [0] * len(ids), None, term)
        outputs = self._run([None] * len(ids), [replace(request, pooling=pooling) for request in requests])
        return [embedding_result(output) for output in outputs]

    def stream(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | None = None,
        clamp_max_tokens: bool = False,
        *,
        cache_salt: str | None = None,
        cache_open_tokens: int = 0,
        retention: Retention | None = None,
        timeout: float | None = None,
    ) -> Iterator[OutputDelta]:
        """One request, delta by delta, as they come. Closing the iterator aborts it. Several streams may be read in
        turns, with calls of ``generate`` between: each step serves all of them.

        ``clamp_max_tokens``: shorten ``max_tokens`` to the room left instead of refusing.
        """
        token_ids = as_token_ids(prompt_token_ids)
        (request,) = self._requests([token_ids], [params], cache_salt, [cache_open_tokens], retention, Term.of(timeout))
        request = replace(request, clamp_max_tokens=clamp_max_tokens or params is None)
        request_id = request.request_id
        open_choices = request.num_choices
        try:
            self._streams[request_id] = deque()
            self._add(request)
            while open_choices:
                delta = self._next_delta(self._streams[request_id])
                open_choices -= delta.finish_reason is not None
                yield delta
        finally:
            self._streams.pop(request_id, None)
            self._abort(request_id)

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_metrics(self) -> EngineStats:
        """A snapshot of queues, pool and counters."""
        with self._at_work() as engine:
            return engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that is not pinned."""
        with self._at_work() as engine:
            engine.reset_prefix_cache()

    def pin(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        ttl: float | None = None,
        priority: int | None = None,
        cache_salt: str | None = None,
        cache_open_tokens: int = 0,
    ) -> PinInfo:
        """Keep the whole blocks of a prefix, a prompt or the beginning of a conversation, in the prefix cache for
        ``ttl`` seconds (None: until ``unpin``), whatever else needs the memory; what is not cached is computed first.
        Pinned once more, it lasts as long as either asks for. ``priority``: its retention priority after that.

        Raises:
            InvalidRequestError: the quota (``pin_quota``), or an open request, leaves no room for it.
        """
        term, ids = Term.of(None), ids_to_pin(prompt, self._tokenizer)
        (request,) = self._requests([ids], [PIN_PARAMS], cache_salt, [cache_open_tokens], None, term)
        (output,) = self._run([None], [replace(request, pins=whole_prompt_wish(ids, ttl, priority))])
        return pin_made(output)

    def unpin(self, pin_id: str) -> bool:
        """End a pin before its time; false if there is none of this id."""
        with self._at_work() as engine:
            return engine.unpin(pin_id)

    def pins(self) -> list[PinInfo]:
        """The pins that have not ended, oldest first."""
        with self._at_work() as engine:
            return engine.pins()

    def close(self) -> None:
        """End what still runs, take the prefix cache to disk (``prefix_cache_dir``), and let others use its file. At
        the end of a ``with LLM(...) as llm:`` this is done by itself. May be repeated; nothing else works after it."""
        if not self._is_closed:
            self._is_closed = True
            with interrupts_wait(), self._at_work() as engine:
                engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> list[int]:
        return self._tokenizer.encode(prompt) if isinstance(prompt, str) else as_token_ids(prompt)

    def _requests(
        self,
        ids: Sequence[list[int]],
        params: Sequence[SamplingParams | None],
        cache_salt: str | None,
        open_tokens: Sequence[int],
        retention: Retention | None,
        term: Term,
    ) -> list[EngineRequest]:
        return [
            make_request(
                str(next(self._ids)),
                token_ids,
                param,
                cache_salt=cache_salt,
                num_open_tokens=num_open,
                retention=retention,
                term=term,
            )
            for token_ids, param, num_open in zip(ids, params, open_tokens, strict=True)
        ]

    def _add(self, request: EngineRequest) -> None:
        with interrupts_wait(), self._at_work() as engine:
            engine.add_request(request)

    def _abort(self, request_id: str) -> None:
        """At once, or as soon as the engine has done what it is at: a stream that nobody holds any more ends where the
        garbage collector finds it, which can be in the middle of a step."""
        self._dropped.append(request_id)
        self._abort_dropped()

    def _abort_dropped(self) -> None:
        while self._dropped and not self._is_at_work:
            self._is_at_work = True
            try:
                with interrupts_wait():
                    self._engine.abort(self._dropped.popleft())
            finally:
                self._is_at_work = False

    @contextmanager
    def _at_work(self) -> Iterator[Engine]:
        """The engine, which nobody else calls meanwhile."""
        was_at_work, self._is_at_work = self._is_at_work, True
        try:
            yield self._engine
        finally:
            self._is_at_work = was_at_work
            self._abort_dropped()

    def _run(self, texts: Sequence[str | None], requests: Sequence[EngineRequest]) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        num_choices = sum(request.num_choices for request in requests)
        with interrupts_wait() as deliver_interrupt, CallProgress(num_choices, self._engine.stats) as progress:
            try:
                for text, request in zip(texts, requests, strict=True):
                    outputs[request.request_id] = RequestOutput.begin(request, text)
                    self._add(request)
                while not all(output.finished for output in outputs.values()):
                    news = self._step()
                    self._take(news, outputs)
                    progress.note(news)
                    deliver_interrupt()
            finally:
                for request_id in outputs:
                    self._abort(request_id)
        return list(outputs.values())

    def _next_delta(self, arrived: deque[OutputDelta]) -> OutputDelta:
        """What comes next for an open stream."""
        with interrupts_wait() as deliver_interrupt:
            while not arrived:
                self._step()
                deliver_interrupt()
            delta = arrived.popleft()
            raise_for(delta)
        return delta

    def _take(self, news: EngineOutputs, outputs: Mapping[str, RequestOutput]) -> None:
        for delta in news.deltas:
            if delta.request_id in outputs:
                raise_for(delta)
                outputs[delta.request_id].add(delta)
        for times in news.finished:
            if times.request_id in outputs:
                outputs[times.request_id].metrics.append(times)

    def _step(self) -> EngineOutputs:
        """One step of everything, no interrupt within; what it brought for open streams waits there until they are
        read."""
        with self._at_work() as engine:
            news = engine.step()
        for delta in news.deltas:
            if delta.request_id in self._streams:
                self._streams[delta.request_id].append(delta)
        return news


def _spread(params: Any, count: int) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(each, SamplingParams) for each in params):
        raise InvalidRequestError(f"params must be SamplingParams, or a list of them, got {params!r:.80}", "params")
    if len(params) != count:
        raise InvalidRequestError(f"{count} prompts need {count} sampling params, got {len(params)}", "params")
    return params
