"""Requests and their results as ``LLM`` and ``AsyncLLM`` make them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from octavo.core.beam_search import BeamSearchParams
from octavo.core.errors import InvalidRequestError, OctavoError
from octavo.core.pin_types import PinInfo, PinWish
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingParams
from octavo.engine.messages import EngineRequest
from octavo.engine.steady_clock import steady_time
from octavo.loading.interface import Tokenizer
from octavo.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    unit,
)
from octavo.prompt import Prompt, as_token_ids

Message = Mapping[str, Any]


class Term(NamedTuple):
    """When a call came (``steady_time()``), and when it has to be answered, if ever."""

    arrival: float
    end_by: float | None

    @classmethod
    def of(cls, timeout: float | None) -> Self:
        """Of a call that comes now; what it does before the engine has it, tokenizing above all, counts.

        Raises:
            InvalidRequestError: a timeout that is none.
        """
        given: Any = timeout
        if given is not None and not (isinstance(given, int | float) and given > 0):
            raise InvalidRequestError(f"timeout must be more than 0 seconds, got {given!r:.80}", "timeout")
        now = steady_time()
        return cls(now, None if given is None else now + given)


def make_request(
    request_id: str,
    token_ids: list[int],
    params: SamplingParams | None,
    *,
    cache_salt: str | None,
    num_open_tokens: int,
    retention: Retention | None,
    term: Term,
) -> EngineRequest:
    """``params`` None: the defaults, ``max_tokens`` shortened to the room left.

    Raises:
        InvalidRequestError: params or a retention that are none.
    """
    given: Any
    for name, given, kind in (("params", params, SamplingParams), ("retention", retention, Retention)):
        if given is not None and not isinstance(given, kind):
            raise InvalidRequestError(f"{name} must be {kind.__name__}, got {given!r:.80}", name)
    return EngineRequest(
        request_id,
        token_ids,
        params or SamplingParams(),
        term.arrival,
        clamp_max_tokens=params is None,
        cache_salt=cache_salt,
        num_open_tokens=num_open_tokens,
        retention=retention,
        end_by=term.end_by,
    )


def with_priorities(requests: Sequence[EngineRequest], priority: int | Sequence[int]) -> list[EngineRequest]:
    """``priority``: one for all, or one for each.

    Raises:
        InvalidRequestError: of another number.
    """
    priorities = list(priority) if isinstance(priority, Sequence) else [priority] * len(requests)
    if len(priorities) != len(requests):
        raise InvalidRequestError(
            f"{len(requests)} prompts need {len(requests)} priorities, got {len(priorities)}", "priority"
        )
    return [replace(request, priority=each) for request, each in zip(requests, priorities, strict=True)]


def check_beam_params(params: Any) -> None:
    """
    Raises:
        InvalidRequestError: they are none.
    """
    if not isinstance(params, BeamSearchParams):
        raise InvalidRequestError(f"params must be BeamSearchParams, got {params!r:.80}", "params")


def beam_results(output: RequestOutput, tokenizer: Tokenizer) -> BeamSearchOutput:
    """What a search that has ended found."""

    def sequence(choice: CompletionOutput) -> BeamSearchSequence:
        assert choice.cumulative_logprob is not None
        assert choice.finish_reason is not None
        tokens = output.prompt_token_ids + choice.token_ids
        return BeamSearchSequence(tokens, tokenizer.decode(tokens), choice.cumulative_logprob, choice.finish_reason)

    return BeamSearchOutput([sequence(choice) for choice in output.outputs])


def embedding_result(output: RequestOutput) -> EmbeddingRequestOutput:
    """The vector of a prompt that has been computed."""
    vector = EmbeddingOutput(unit(output.embedding or []))
    return EmbeddingRequestOutput(output.request_id, vector, output.prompt_token_ids)


EMBEDDING_PARAMS = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
"""Of a request for a vector; its token is dropped."""

PIN_PARAMS = SamplingParams(temperature=0.0, max_tokens=1)
"""Of the request that computes what is to be pinned."""


def ids_to_pin(prompt: Prompt | Sequence[Message], tokenizer: Tokenizer) -> list[int]:
    """``prompt``: one, or the beginning of a conversation."""
    given: Any = prompt
    if isinstance(given, Sequence) and given and isinstance(given[0], Mapping):
        return tokenizer.apply_chat_template(given, add_generation_prompt=False)
    return tokenizer.encode(given) if isinstance(given, str) else as_token_ids(given)


def whole_prompt_wish(token_ids: Sequence[int], ttl: float | None, priority: int | None) -> tuple[PinWish]:
    """The wish to pin all of a prompt's whole blocks."""
    return (PinWish(len(token_ids), ttl, priority),)


def pin_made(output: RequestOutput) -> PinInfo:
    """
    Raises:
        OctavoError: the pin that the request asked for could not be made.
    """
    report = output.pin_report
    assert report is not None, "a request that asked for pins is told what became of them"
    if not report.pins:
        raise OctavoError(report.refusals[0])
    return report.pins[0]
