"""What a request says of how long its prefixes stay in the cache: pins, ``cache_control`` marks, priorities."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinWish
from octavo.core.retention import DEFAULT_PRIORITY, Retention
from octavo.loading.marked_prefix import Place, num_tokens_before
from octavo.server.access.auth import Role
from octavo.server.errors import ApiError
from octavo.server.limits import ServerLimits
from octavo.server.prompts import Prompt, in_text_thread
from octavo.server.sampling import SamplingFields
from octavo.server.state import ServerState

MAX_MARKS = 4
"""As in Anthropic's API."""
MARK_SECONDS = {"5m": 300.0, "1h": 3600.0}


class Mark(NamedTuple):
    """A ``cache_control`` mark: what comes before ``place`` is to be kept for ``ttl`` seconds."""

    place: Place
    ttl: float


def retention_of(fields: SamplingFields, role: Role) -> Retention | None:
    """
    Raises:
        InvalidRequestError: out of range.
        ApiError: 403 where the sender may not have more than others have.
    """
    priority, duration = fields.retention_priority, fields.retention_duration
    if priority is None and duration is None:
        return None
    retention = Retention(DEFAULT_PRIORITY if priority is None else priority, duration)
    if retention.priority > DEFAULT_PRIORITY:
        _check_may_pin(role, "retention_priority", f"retention_priority above {DEFAULT_PRIORITY}")
    return retention


def prompt_pins(fields: SamplingFields, role: Role, limits: ServerLimits, prompts: Sequence[Prompt]) -> list[PinWish]:
    """What ``pin_prefix`` asks for, one pin a prompt; none where it is absent.

    Raises:
        InvalidRequestError: out of range.
        ApiError: 403 where the sender may not pin.
    """
    asked = fields.pin_prefix
    if asked is None:
        return []
    _check_may_pin(role, "pin_prefix", "pin_prefix")
    if not 0 < asked.ttl <= limits.pin_seconds:
        raise InvalidRequestError(
            f"ttl must be above 0 and at most {limits.pin_seconds} seconds, got {asked.ttl:g}", "pin_prefix"
        )
    counts = [len(prompt.token_ids) if asked.tokens is None else asked.tokens for prompt in prompts]
    return [PinWish(count, asked.ttl, asked.priority) for count in counts]


def _check_may_pin(role: Role, param: str, what: str) -> None:
    if role < Role.PINNER:
        raise ApiError(
            403,
            f"{what} is for keys that may pin (--pin-key), or for all with --allow-pins; leave it out.",
            code="pins_not_allowed",
            param=param,
        )


def cache_marks(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None, whole: Any = None
) -> list[Mark]:
    """The ``cache_control`` marks of a checked conversation: on its tools, messages, parts of their content, and
    ``whole``, that of the request itself, which stands for one at the end.

    Raises:
        InvalidRequestError: another form than Anthropic's, or too many.
    """
    found = [*_found_marks(messages, tools or ()), (Place(len(messages) - 1), whole)]
    marks = [Mark(place, _seconds(value)) for place, value in found if value is not None]
    if len(marks) > MAX_MARKS:
        raise InvalidRequestError(
            f"cache_control may mark at most {MAX_MARKS} places, got {len(marks)}", "cache_control"
        )
    return marks


def _found_marks(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> Iterator[tuple[Place, Any]]:
    for tool in tools:
        if isinstance(tool, Mapping):
            yield Place(None), tool.get("cache_control")
    for index, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            is_last = number + 1 == len(content or ())
            yield Place(index, None if is_last else number), part.get("cache_control")
        yield Place(index), message.get("cache_control")


def _seconds(mark: Any) -> float:
    if not isinstance(mark, Mapping) or mark.get("type") != "ephemeral":
        raise InvalidRequestError(f"cache_control must be {{'type': 'ephemeral'}}, got {mark!r:.80}", "cache_control")
    ttl = mark.get("ttl", "5m")
    if not isinstance(ttl, str) or ttl not in MARK_SECONDS:
        raise InvalidRequestError(f"the ttl of cache_control must be '5m' or '1h', got {ttl!r:.80}", "cache_control")
    return MARK_SECONDS[ttl]


async def marked_pins(
    state: ServerState,
    messages: Sequence[Mapping[str, Any]],
    marks: Sequence[Mark],
    token_ids: Sequence[int],
    options: Mapping[str, Any],
) -> list[PinWish]:
    """One pin for each mark, which are left out where there is no room; ``options``: those the prompt was made with."""

    def find() -> list[PinWish]:
        counts = (num_tokens_before(state.tokenizer, messages, mark.place, token_ids, options) for mark in marks)
        return [PinWish(count, mark.ttl, is_required=False) for count, mark in zip(counts, marks, strict=True) if count]

    return await in_text_thread(state, find)
