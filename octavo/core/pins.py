"""Pins: prefixes that stay in the prefix cache whatever else needs their blocks, until their time is over.

A pin holds one reference to each block of a chain from its root on, so it is closed under prefix by itself. Pins never
give way to others: what the quota or an open request has no room for is refused.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from typing import NamedTuple, TypeVar

from octavo.core.errors import InvalidRequestError
from octavo.core.kv_types import CacheConfig
from octavo.core.pin_types import PinInfo, PinRefusal, PinReport, PinWish
from octavo.core.pool import BlockPool
from octavo.core.retention import Retention

T = TypeVar("T")

PrefixNames = Callable[[Sequence[bytes]], Sequence[Sequence[bytes]]]
"""What the pool calls the blocks that a hit of these hashes takes: one chain a layer group."""

Retain = Callable[[Iterable[int], Retention], None]
"""Gives blocks in use a retention priority."""


class _Wanted(NamedTuple):
    """A wish that was granted: the chain's hashes, and the names of its blocks."""

    wish: PinWish
    hashes: list[bytes]
    names: Sequence[Sequence[bytes]]


class PinClaim:
    """A request's wishes between the door, where blocks are set aside for them, and the landing of their tokens."""

    __slots__ = ("cache_salt", "pending", "report")

    def __init__(self, cache_salt: str | None) -> None:
        self.cache_salt = cache_salt
        self.pending: list[_Wanted] = []  # shortest first
        self.report = PinReport()


@dataclass(slots=True)
class _Pin:
    info: PinInfo
    names: Sequence[Sequence[bytes]]
    groups: list[list[int]]


class Pins:
    """All pins of one pool. What is claimed (pinned, or set aside for pins to come) is
    counted by name, so blocks that several pins share count once."""

    def __init__(self, pool: BlockPool, config: CacheConfig, prefix_names: PrefixNames, retain: Retain) -> None:
        self.max_blocks = config.max_pinned_blocks
        """The quota."""
        self.refusals: Counter[PinRefusal] = Counter()
        """By reason."""
        self._pool = pool
        self._block_size = config.block_size
        self._obstacle = config.no_pins_because
        self._prefix_names = prefix_names
        self._retain = retain
        self._pins: dict[bytes, _Pin] = {}  # by the hash of the last block
        self._claims: Counter[bytes] = Counter()
        self._references: Counter[int] = Counter()
        self._now = -inf
        self._next_end = inf

    @property
    def num_blocks(self) -> int:
        """Blocks that are pinned."""
        return len(self._references)

    @property
    def num_claimed(self) -> int:
        """Blocks that are pinned or set aside for pins that have been granted."""
        return len(self._claims)

    @property
    def num_unclaimed(self) -> int:
        """Blocks of the pool that requests can count on."""
        return self._pool.num_blocks - self.num_claimed

    @property
    def next_end(self) -> float:
        """When the next pin ends; infinite if none does."""
        return self._next_end

    @property
    def references(self) -> Counter[int]:
        """References held, by block."""
        return self._references

    def __len__(self) -> int:
        return len(self._pins)

    def infos(self) -> list[PinInfo]:
        """The pins there are, oldest first."""
        return [pin.info for pin in self._pins.values()]

    # The door

    def claim(
        self, hashes: Sequence[bytes], wishes: Iterable[PinWish], cache_salt: str | None, num_needed: int
    ) -> PinClaim:
        """Set blocks aside for a request's wishes. ``hashes`` name its full blocks, ``num_needed`` blocks are what the
        largest open request may come to need.

        Raises:
            InvalidRequestError: a required one cannot be; nothing has changed.
        """
        claim = PinClaim(cache_salt)
        for wish in sorted(wishes, key=lambda wish: wish.num_tokens):
            head = list(hashes[: wish.num_tokens // self._block_size])
            names = self._prefix_names(head)
            objection = self._objection(wish, names, num_needed)
            if objection is None:
                claim.pending.append(_Wanted(wish, head, names))
                self._claims.update(chain.from_iterable(names))
                continue
            reason, refusal = objection
            self.refusals[reason] += 1
            claim.report.refusals.append(refusal)
            if wish.is_required:
                self.withdraw(claim)
                raise InvalidRequestError(refusal, "pin_prefix")
        return claim

    def withdraw(self, claim: PinClaim) -> None:
        """The request is not accepted after all."""
        for wanted in claim.pending:
            self._unclaim(wanted.names)
        claim.pending.clear()

    def _objection(
        self, wish: PinWish, names: Sequence[Sequence[bytes]], num_needed: int
    ) -> tuple[PinRefusal, str] | None:
        """Why this cannot be, as a word for the metrics and as a sentence; None if it can."""
        size = self._block_size
        if self._obstacle is not None:
            return "quota", self._obstacle
        if wish.num_tokens < size:
            return "short", f"a pin keeps whole blocks of {size} tokens, but this prefix has {wish.num_tokens}"
        num_new = len(set(chain.from_iterable(names)) - self._claims.keys())
        num_after = self.num_claimed + num_new
        needs = f"a pin of {wish.num_tokens} tokens needs {num_new} more blocks"
        if num_after > self.max_blocks:
            return "quota", (
                f"{needs}, but pins may hold {self.max_blocks} (pin_quota) and hold {self.num_claimed}; pin less, or "
                "release other pins"
            )
        if num_after + num_needed > self._pool.num_blocks:
            return "requests", (
                f"{needs} beside the {self.num_claimed} that pins hold, but an open request may need {num_needed} of "
                f"the pool's {self._pool.num_blocks}; try again when it has ended, or send less max_tokens"
            )
        return None

    # The landing

    def settle(self, claim: PinClaim, num_landed: int) -> None:
        """Pin what has landed of the wishes, the first ``num_landed`` tokens being there."""
        while claim.pending and len(claim.pending[0].hashes) * self._block_size <= num_landed:
            wanted = claim.pending.pop(0)
            info = self._take(wanted, claim.cache_salt)
            self._unclaim(wanted.names)
            if info is not None:
                claim.report.pins.append(info)
            else:
                self._refuse_lost(claim)

    def give_up(self, claim: PinClaim) -> None:
        """The request is over: what has not landed by now never will."""
        for _ in claim.pending:
            self._refuse_lost(claim)
        self.withdraw(claim)

    def _refuse_lost(self, claim: PinClaim) -> None:
        self.refusals["lost"] += 1
        claim.report.refusals.append("the prefix left the cache before it could be pinned; send it again")

    def _take(self, wanted: _Wanted, cache_salt: str | None) -> PinInfo | None:
        """Pin blocks that the prefix cache has, or let the pin that they have last longer; None if it has not all."""
        wish, key = wanted.wish, wanted.hashes[-1]
        ends = None if wish.ttl is None else self._now + wish.ttl
        pin = self._pins.get(key)
        if pin is None:
            groups = [self._pool.lookup_chain(names) for names in wanted.names]
            if list(map(len, groups)) != list(map(len, wanted.names)):
                return None
            info = PinInfo(
                f"pin-{key.hex()}",
                len(wanted.hashes) * self._block_size,
                sum(map(len, groups)),
                ends,
                wish.priority,
                cache_salt,
            )
            pin = self._pins[key] = _Pin(info, wanted.names, groups)
            self._claims.update(chain.from_iterable(wanted.names))
            self._references.update(chain.from_iterable(groups))
            for group in groups:
                self._pool.acquire(group)
        else:
            pin.info = _prolonged(pin.info, ends, wish.priority)
        self._next_end = min(map(_end, self._pins.values()))
        return pin.info

    # The end

    def tell_time(self, now: float) -> None:
        """``now``: seconds, on the clock of all calls. Pins whose time is over are released."""
        self._now = now
        if now >= self._next_end:
            self._release([key for key, pin in self._pins.items() if _end(pin) <= now])

    def release(self, pin_id: str) -> bool:
        """End a pin; false if there is none of this id."""
        keys = [key for key, pin in self._pins.items() if pin.info.pin_id == pin_id]
        self._release(keys)
        return bool(keys)

    def release_all(self) -> None:
        self._release(list(self._pins))

    def release_nameless(self) -> None:
        """End pins of blocks that the prefix cache had to forget: a failed step was to fill them."""
        pool_names = self._pool.names
        self._release(
            [
                key
                for key, pin in self._pins.items()
                if any(pool_names[block_id] is None for block_id in chain.from_iterable(pin.groups))
            ]
        )

    def _release(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            pin = self._pins.pop(key)
            self._unclaim(pin.names)
            _subtract(self._references, chain.from_iterable(pin.groups))
            for group in pin.groups:
                if pin.info.priority is not None:
                    self._retain(group, Retention(pin.info.priority))
                self._pool.release(reversed(group))
        self._next_end = min(map(_end, self._pins.values()), default=inf)

    def _unclaim(self, names: Sequence[Sequence[bytes]]) -> None:
        _subtract(self._claims, chain.from_iterable(names))


def _end(pin: _Pin) -> float:
    return inf if pin.info.expires_at is None else pin.info.expires_at


def _prolonged(info: PinInfo, ends: float | None, priority: int | None) -> PinInfo:
    """The same pin, asked for once more: the later end and the higher priority count."""
    known_end, known_priority = info.expires_at, info.priority
    return replace(
        info,
        expires_at=None if known_end is None or ends is None else max(known_end, ends),
        priority=max((each for each in (known_priority, priority) if each is not None), default=None),
    )


def _subtract(counts: Counter[T], items: Iterable[T]) -> None:
    """Count these down, and leave no zero behind."""
    for item in items:
        counts[item] -= 1
        if not counts[item]:
            del counts[item]
