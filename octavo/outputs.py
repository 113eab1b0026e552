"""What comes back from an engine in Python, put together from its deltas; names as in vLLM."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add

from octavo.core.errors import InvalidRequestError, OctavoError, TimedOutError
from octavo.core.pin_types import PinReport
from octavo.core.step import TokenLogprobs
from octavo.engine.coalesce import join
from octavo.engine.messages import EngineRequest, OutputDelta, RequestTimes


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
    """One request with its choices. ``metrics``: times of each choice, in the order in which they ended. ``prompt``
    is None where ids were given. ``embedding``: as the model gives it, where it was asked for."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finished: bool = False
    metrics: list[RequestTimes] = field(default_factory=list)
    num_cached_tokens: int = 0
    pin_report: PinReport | None = None
    embedding: list[float] | None = None

    @classmethod
    def begin(cls, request: EngineRequest, prompt: str | None) -> "RequestOutput":
        """What there is of ``request`` before its first step."""
        choices = [CompletionOutput(index) for index in range(request.num_choices)]
        return cls(request.request_id, prompt, request.prompt_token_ids, choices)

    def add(self, delta: OutputDelta) -> None:
        """Take in what is new of one choice."""
        output = self.outputs[delta.index]
        join(output, delta)
        if delta.logprobs is not None:
            # Token by token: the bits of the sum must not depend on how many tokens came with one delta.
            drawn = (entry.logprob for entry in delta.logprobs)
            output.cumulative_logprob = reduce(add, drawn, output.cumulative_logprob or 0.0)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.pin_report is not None:
            self.pin_report = delta.pin_report
        if delta.embedding is not None:
            self.embedding = delta.embedding
        if delta.index == 0:
            self.num_cached_tokens = delta.num_cached_tokens
        self.finished = all(output.finish_reason for output in self.outputs)

    def snapshot(self) -> "RequestOutput":
        """A copy that what comes later leaves as it is."""
        outputs = [
            replace(
                output,
                token_ids=output.token_ids.copy(),
                logprobs=None if output.logprobs is None else output.logprobs.copy(),
            )
            for output in self.outputs
        ]
        return replace(self, outputs=outputs, metrics=self.metrics.copy())


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A vector of length 1, as many numbers as the model is wide."""

    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """One prompt with its vector."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


def unit(vector: Sequence[float]) -> list[float]:
    """In its direction, of length 1; nothing but zeros has none, and stays."""
    length = math.hypot(*vector)
    return [each / length for each in vector] if length else list(vector)


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One result of a beam search, prompt and output together, in ``text`` without control tokens. ``cum_logprob``: of
    the output, summed over its tokens (an EOS included), raw. ``finish_reason``: "stop" (an EOS, which is the last of
    ``tokens``) or "length"."""

    tokens: list[int]
    text: str
    cum_logprob: float
    finish_reason: str


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The results for one prompt, as many as beams, best first."""

    sequences: list[BeamSearchSequence]


def raise_for(delta: OutputDelta) -> None:
    """
    Raises:
        InvalidRequestError, TimedOutError, OctavoError: the engine refused the request, ended it by its time, or
            failed on it.
    """
    if delta.error is None:
        return
    if delta.invalid_param is not None:
        raise InvalidRequestError(delta.error, delta.invalid_param or None)
    raise TimedOutError(delta.error) if delta.timeout else OctavoError(delta.error)
