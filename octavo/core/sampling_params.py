"""What a client may ask of sampling: one frozen, validated value (names as in vLLM and the OpenAI API)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.core.errors import InvalidRequestError, shown
from octavo.core.structured import Constraint, StructuredLimits, StructuredOutputsParams, Thinking, as_constraint
from octavo.core.token_ids import check_token_ids

SEED_LIMIT = 2**63
"""Seeds are whole numbers in [0, 2**63): B14."""


@dataclass(frozen=True, slots=True)
class SamplingLimits:
    """Upper limits of one request (spec D14); settable by the server."""

    n: int = 64
    logprobs: int = 20
    stops: int = 16
    stop_characters: int = 256
    stop_token_ids: int = 128
    logit_bias: int = 1024
    bad_words: int = 128
    cache_salt_characters: int = 1024
    schema_bytes: int = 256 * 2**10
    regex_bytes: int = 4 * 2**10
    schema_nesting: int = 64

    @property
    def structured(self) -> StructuredLimits:
        return StructuredLimits(self.schema_bytes, self.regex_bytes, self.schema_nesting)


DEFAULT_LIMITS = SamplingLimits()

_FLAGS = (
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are drawn and when it ends.

    ``temperature`` 0 is greedy. ``top_k`` 0 or -1 means all tokens. ``max_tokens`` None means the room left.
    ``shown_token_ids``: control tokens that are part of the text in spite of ``skip_special_tokens``.
    ``seed`` None draws a fresh seed. ``structured_outputs``: what the text must be; see ``constraint``; ``thinking``:
    what may come before that. Ranges are checked on creation.

    Raises:
        InvalidRequestError: a value is outside its documented range; ``param`` names the field.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | tuple[str, ...] | None = None
    stop_token_ids: list[int] | tuple[int, ...] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    shown_token_ids: list[int] | tuple[int, ...] | None = None
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: Constraint | StructuredOutputsParams | Mapping[str, Any] | None = None
    thinking: Thinking | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | tuple[int, ...] | None = None
    bad_words: list[str] | tuple[str, ...] | None = None
    limits: SamplingLimits = field(default=DEFAULT_LIMITS, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_lists(self)
        # Kept in one form, whatever it was given in.
        object.__setattr__(self, "structured_outputs", as_constraint(self.structured_outputs, self.limits.structured))

    def check_vocabulary(self, vocab_size: int) -> None:
        """
        Raises:
            InvalidRequestError: an id outside the vocabulary (spec D26).
        """
        for name in ("stop_token_ids", "logit_bias", "allowed_token_ids"):
            check_token_ids(name, getattr(self, name) or (), vocab_size)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings as a tuple, whatever form they were given in."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def constraint(self) -> Constraint | None:
        """What ``structured_outputs`` asks for."""
        kept = self.structured_outputs
        return kept if isinstance(kept, Constraint) else None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _whole(name: str, value: Any, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequestError(f"{name} must be a whole number, got {shown(value)}", name)
    if value < low or (high is not None and value > high):
        bound = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InvalidRequestError(f"{name} must be {bound}, got {shown(value)}", name)


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false, got {shown(value)}", name)


def _real(name: str, value: Any, low: float, high: float, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequestError(f"{name} must be a number, got {shown(value)}", name)
    if not low <= value <= high or (open_low and value == low):
        start = "(" if open_low else "["
        raise InvalidRequestError(f"{name} must be in {start}{low:g}, {high:g}], got {shown(value)}", name)


def _check_ranges(p: SamplingParams) -> None:
    limits = p.limits
    _whole("n", p.n, 1, limits.n)
    _real("presence_penalty", p.presence_penalty, -2.0, 2.0)
    _real("frequency_penalty", p.frequency_penalty, -2.0, 2.0)
    _real("repetition_penalty", p.repetition_penalty, 0.0, 100.0, open_low=True)
    _real("temperature", p.temperature, 0.0, 100.0)
    _real("top_p", p.top_p, 0.0, 1.0, open_low=True)
    _whole("top_k", p.top_k, -1)
    _real("min_p", p.min_p, 0.0, 1.0)
    if p.seed is not None:
        _whole("seed", p.seed, 0, SEED_LIMIT - 1)
    _whole("min_tokens", p.min_tokens, 0)
    if p.max_tokens is not None:
        _whole("max_tokens", p.max_tokens, 1)
        if p.min_tokens > p.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({p.min_tokens}) must not exceed max_tokens ({p.max_tokens})", "min_tokens"
            )
    for name in _FLAGS:
        _flag(name, getattr(p, name))
    for name, value in (("logprobs", p.logprobs), ("prompt_logprobs", p.prompt_logprobs)):
        if value is not None:
            _whole(name, value, 0, limits.logprobs)


def _check_lists(p: SamplingParams) -> None:
    limits = p.limits
    for name in ("stop", "bad_words", "stop_token_ids", "allowed_token_ids"):
        value = getattr(p, name)
        is_text = name == "stop" and isinstance(value, str)
        if value is not None and not is_text and not isinstance(value, list | tuple):
            raise InvalidRequestError(f"{name} must be a list, got {shown(value)}", name)
    if p.logit_bias is not None and not isinstance(p.logit_bias, dict):
        raise InvalidRequestError(f"logit_bias must be a map of token ids, got {shown(p.logit_bias)}", "logit_bias")
    _check_texts("stop", p.stops, limits.stops, limits.stop_characters)
    _check_texts("bad_words", p.bad_words or (), limits.bad_words, limits.stop_characters)
    _check_ids("stop_token_ids", p.stop_token_ids or (), limits.stop_token_ids)
    if p.allowed_token_ids is not None:
        if not p.allowed_token_ids:
            raise InvalidRequestError("allowed_token_ids must not be empty", "allowed_token_ids")
        _check_ids("allowed_token_ids", p.allowed_token_ids, None)
    if p.logit_bias:
        _check_ids("logit_bias", p.logit_bias, limits.logit_bias)
        for value in p.logit_bias.values():
            _real("logit_bias", value, -100.0, 100.0)


def _check_texts(name: str, texts: Iterable[Any], count: int, characters: int) -> None:
    texts = tuple(texts)
    if len(texts) > count:
        raise InvalidRequestError(f"{name} may hold at most {count} strings, got {len(texts)}", name)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InvalidRequestError(f"{name} must hold non-empty strings, got {shown(text)}", name)
        if not _is_unicode(text):
            raise InvalidRequestError(f"{name} holds a string that is no Unicode text (a lone surrogate)", name)
        if len(text) > characters:
            raise InvalidRequestError(
                f"each string of {name} may have at most {characters} characters, got {len(text)}", name
            )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_ids(name: str, ids: Collection[Any], count: int | None) -> None:
    if count is not None and len(ids) > count:
        raise InvalidRequestError(f"{name} may hold at most {count} token ids, got {len(ids)}", name)
    check_token_ids(name, ids)
