"""Pins as those outside the core see them: what is asked for, what there is, what became of it."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from octavo.core.errors import InvalidRequestError
from octavo.core.retention import check_priority, check_seconds

PinRefusal = Literal["quota", "requests", "short", "lost"]
"""Why a pin could not be had: the quota, open requests, less than a block, gone from the cache before it was pinned."""
PIN_REFUSALS: tuple[PinRefusal, ...] = get_args(PinRefusal)


@dataclass(frozen=True, slots=True)
class PinWish:
    """Pin the whole blocks among the first ``num_tokens`` tokens of a prompt, from when they have landed, for ``ttl``
    seconds (None: until released). Then they are of retention priority ``priority`` (None: as without it).

    ``is_required``: refuse the request where that cannot be; else it goes on without the pin.

    Raises:
        InvalidRequestError: a value out of its range.
    """

    num_tokens: int
    ttl: float | None = None
    priority: int | None = None
    is_required: bool = True

    def __post_init__(self) -> None:
        if type(self.num_tokens) is not int or self.num_tokens < 0:
            raise InvalidRequestError(f"a pin must be of a number of tokens, got {self.num_tokens!r:.80}", "pin_prefix")
        if self.ttl is not None:
            check_seconds(self.ttl, "ttl")
        if self.priority is not None:
            check_priority(self.priority, "priority")


@dataclass(frozen=True, slots=True)
class PinInfo:
    """A pin as users see it. ``num_blocks``: over all layer groups. ``expires_at``: on the engine's clock, None for
    never. ``cache_salt``: of whom it was asked for by."""

    pin_id: str
    num_tokens: int
    num_blocks: int
    expires_at: float | None = None
    priority: int | None = None
    cache_salt: str | None = None


@dataclass(slots=True)
class PinReport:
    """What became of a request's wishes: the pins there are, and why others are not."""

    pins: list[PinInfo] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
