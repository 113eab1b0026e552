"""The sampling fields that both families of endpoints take, and what they become."""

from typing import Annotated, Any, Literal

import msgspec

from octavo.core.errors import InvalidRequestError
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured import Constraint
from octavo.engine.intake import check_has_salt, check_salt
from octavo.server.limits import ServerLimits
from octavo.server.truncation import check_truncation

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Whole numbers that fit the wire; narrower ranges are SamplingParams' own."""


class PinFields(msgspec.Struct, kw_only=True):
    """``pin_prefix``: see PinWish. ``tokens`` None: the whole prompt."""

    ttl: float = 300.0
    priority: Int64 | None = None
    tokens: Int64 | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: str
    json_schema: JsonSchemaFormat | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Null means the same as absent. Names and meanings as in SamplingParams; for the last group
    see ``octavo.server.structured``."""

    model: str | None = None
    n: Int64 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int64] | None = None
    ignore_eos: bool | None = None
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = None
    prompt_logprobs: Int64 | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: dict[Int64, float] | None = None
    allowed_token_ids: list[Int64] | None = None
    bad_words: list[str] | None = None
    truncate_prompt_tokens: Int64 | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None
    cache_open_tokens: Int64 | Literal["system"] | None = None
    pin_prefix: PinFields | None = None
    retention_priority: Int64 | None = None
    retention_duration: float | None = None
    slo_ttft_ms: float | None = None
    request_timeout_ms: float | None = None
    return_token_ids: bool | None = None
    echo: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    use_beam_search: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json_object: Any = None

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


_SAME_NAME = (
    *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p"),
    *("seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "prompt_logprobs", "skip_special_tokens"),
    *("spaces_between_special_tokens", "include_stop_str_in_output", "logit_bias", "allowed_token_ids", "bad_words"),
)
GUIDED_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
}
"""vLLM's older names, and what of ``structured_outputs`` each stands for."""


def refuse_unsupported(fields: SamplingFields, limits: ServerLimits) -> None:
    """Known fields whose values cannot be honoured.

    Raises:
        InvalidRequestError: naming the field; nothing that would change the answer is dropped in silence.
    """
    if not fields.use_beam_search:
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(fields, name) not in (None, neutral):
                raise InvalidRequestError(f"{name} has a meaning with use_beam_search only.", name)
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequestError("stream_options may be set only when stream is true.", "stream_options")
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequestError("prompt_logprobs is not available when stream is true.", "prompt_logprobs")
    check_truncation(fields.truncate_prompt_tokens)
    salt = fields.cache_salt
    check_salt(salt, limits.sampling.cache_salt_characters)
    check_has_salt(fields.cache_open_tokens, salt)
    if fields.cache_open_tokens and fields.truncate_prompt_tokens is not None:
        raise InvalidRequestError(
            "cache_open_tokens counts from the prompt's beginning, which truncate_prompt_tokens cuts off; send one.",
            "cache_open_tokens",
        )


def sampling_params(
    fields: SamplingFields,
    limits: ServerLimits,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    constraint: Constraint | None = None,
) -> SamplingParams:
    """``constraint``: what the text must be, whichever field asks for it.

    Raises:
        InvalidRequestError: a value out of its range.
    """
    values = {name: getattr(fields, name) for name in _SAME_NAME}
    given = {name: value for name, value in values.items() if value is not None}
    return SamplingParams(
        **given, max_tokens=max_tokens, logprobs=logprobs, structured_outputs=constraint, limits=limits.sampling
    )
