"""The engine in this process: ``LLM(model).generate(prompts, params)``, as in vLLM."""

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.build import build_engine, build_tokenizer
from octavo.core.errors import InvalidRequestError, OctavoError
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import TokenLogprobs
from octavo.engine.messages import EngineOutputs, EngineRequest, EngineStats, OutputDelta, RequestTimes
from octavo.engine_args import EngineArgs
from octavo.loading.interface import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None


@dataclass(slots=True)
class CompletionOutput:
    """One choice. ``logprobs``: one entry a token, raw, where asked for."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """One request with its choices. ``metrics``: times of each choice, in the order in which they ended. ``prompt`` None where ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finished: bool = False
    metrics: list[RequestTimes] = field(default_factory=list)
    num_cached_tokens: int = 0

    def add(self, delta: OutputDelta) -> None:
        """Take in what is new of one choice."""
        output = self.outputs[delta.index]
        output.text += delta.text
        output.token_ids += delta.token_ids
        if delta.logprobs is not None:
            output.logprobs = (output.logprobs or []) + delta.logprobs
            drawn = (entry.logprob for entry in delta.logprobs)
            output.cumulative_logprob = (output.cumulative_logprob or 0.0) + sum(drawn)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.index == 0:
            self.num_cached_tokens = delta.num_cached_tokens
        output.finish_reason = delta.finish_reason
        output.stop_reason = delta.stop_reason
        self.finished = all(output.finish_reason for output in self.outputs)


class LLM:
    """A model with its engine. Keyword arguments are those of ``EngineArgs``.

    Not to be used from several threads at once.

    Raises:
        ConfigurationError: the model or the settings cannot work.
    """

    def __init__(self, model: str = EngineArgs.model, **engine_args: Any) -> None:
        self._args = EngineArgs(model=str(model), **engine_args)
        self._tokenizer = build_tokenizer(self._args)
        self._engine = build_engine(self._args, self._tokenizer)
        self._ids = itertools.count()

    def generate(self, prompts: Prompt | Sequence[Prompt], params: Params = None) -> list[RequestOutput]:
        """Complete prompts, all together; answers come in the order of the prompts.

        ``prompts``: a text, a list of token ids, or a list of either. ``params``: one for all, or one a prompt.

        Raises:
            InvalidRequestError: a request that can never be served; nothing has run.
        """
        listed: list[Any] = [prompts] if _is_one(prompts) else list(prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in listed]
        ids = [self._encode(prompt) for prompt in listed]
        return self._run(texts, ids, _spread(params, len(ids)))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template.

        ``template_options``: see ``Tokenizer.apply_chat_template``.
        """
        conversations: list[Any] = [messages] if isinstance(messages[0], Mapping) else list(messages)
        ids = [self._tokenizer.apply_chat_template(talk, **template_options) for talk in conversations]
        return self._run([None] * len(ids), ids, _spread(params, len(ids)))

    def stream(
        self, prompt_token_ids: Sequence[int], params: SamplingParams | None = None, clamp_max_tokens: bool = False
    ) -> Iterator[OutputDelta]:
        """One request, delta by delta, as they come. Closing the iterator aborts it.

        ``clamp_max_tokens``: shorten ``max_tokens`` to the room left instead of refusing.
        """
        params = params or SamplingParams()
        request_id = self._add(list(prompt_token_ids), params, clamp_max_tokens)
        open_choices = params.n
        try:
            while open_choices:
                for delta in self._step().deltas:
                    if delta.request_id != request_id:
                        continue
                    _raise_for(delta)
                    open_choices -= delta.finish_reason is not None
                    yield delta
        finally:
            self._engine.abort(request_id)

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_metrics(self) -> EngineStats:
        """A snapshot of queues, pool and counters."""
        return self._engine.stats()

    def reset_prefix_cache(self) -> None:
        self._engine.reset_prefix_cache()

    def _encode(self, prompt: Prompt) -> list[int]:
        return self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _add(self, token_ids: list[int], params: SamplingParams, clamp_max_tokens: bool = False) -> str:
        request_id = str(next(self._ids))
        self._engine.add_request(EngineRequest(request_id, token_ids, params, time.time(), clamp_max_tokens))
        return request_id

    def _run(
        self, texts: Sequence[str | None], ids: Sequence[list[int]], params: Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        for text, token_ids, param in zip(texts, ids, params, strict=True):
            request_id = self._add(token_ids, param)
            choices = [CompletionOutput(index) for index in range(param.n)]
            outputs[request_id] = RequestOutput(request_id, text, token_ids, choices)
        try:
            while not all(output.finished for output in outputs.values()):
                self._take(self._step(), outputs)
        finally:
            for request_id in outputs:
                self._engine.abort(request_id)
        return list(outputs.values())

    def _take(self, news: EngineOutputs, outputs: Mapping[str, RequestOutput]) -> None:
        for delta in news.deltas:
            if delta.request_id in outputs:
                _raise_for(delta)
                outputs[delta.request_id].add(delta)
        for times in news.finished:
            if times.request_id in outputs:
                outputs[times.request_id].metrics.append(times)

    def _step(self) -> EngineOutputs:
        return self._engine.step()


def _is_one(prompts: Any) -> bool:
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _spread(params: Params, count: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidRequestError(f"{count} prompts need {count} sampling params, got {len(params)}", "params")
    return params


def _raise_for(delta: OutputDelta) -> None:
    if delta.error is None:
        return
    if delta.invalid_param is not None:
        raise InvalidRequestError(delta.error, delta.invalid_param or None)
    raise OctavoError(delta.error)
