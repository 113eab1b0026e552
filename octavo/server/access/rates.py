"""How much a tenant may send: the size of a request, and rates that are refilled all the time."""

from collections.abc import Callable
from dataclasses import dataclass

from octavo.core.errors import InvalidRequestError
from octavo.server.errors import ApiError
from octavo.server.queueing.queue import whole_seconds

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """None: no bound. ``tokens_per_minute`` counts those of prompts and those generated. ``max_prompt_tokens`` is of
    all prompts of a request together, ``max_body_bytes`` of a request's body."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_prompt_tokens: int | None = None
    max_body_bytes: int | None = None


class Bucket:
    """``per_minute`` may be taken at once, and come back evenly over a minute. What is not known beforehand is taken
    all the same, and is a debt then. ``clock``: seconds that only grow."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._left = float(per_minute)
        self._seen = clock()

    def seconds_until(self, amount: float) -> float:
        """How long until ``amount``, at most ``per_minute``, is there; 0: now."""
        return max(0.0, (amount - self._refilled()) * 60 / self.per_minute)

    def take(self, amount: float) -> None:
        self._left = self._refilled() - amount

    def _refilled(self) -> float:
        now = self._clock()
        self._left = min(float(self.per_minute), self._left + (now - self._seen) * self.per_minute / 60)
        self._seen = now
        return self._left


class Allowance:
    """What one tenant has left."""

    def __init__(self, tenant: str, limits: TenantLimits, clock: Clock) -> None:
        self.tenant = tenant
        self.limits = limits
        self._requests = _bucket(limits.requests_per_minute, clock)
        self._tokens = _bucket(limits.tokens_per_minute, clock)

    def take_request(self) -> None:
        """A request has come. What is refused takes nothing, so trying again does not put the next one off.

        Raises:
            ApiError: 429 where the tenant has sent as many as it may.
        """
        if self._requests is None:
            return
        self._require(self._requests, 1, "requests")
        self._requests.take(1)

    def take_prompt(self, num_tokens: int, param: str) -> None:
        """Its prompts, in the field ``param``, have so many tokens.

        Raises:
            InvalidRequestError: they are more than it may ever have.
            ApiError: 429 where there is no room for them now.
        """
        largest = self.limits.max_prompt_tokens
        if largest is not None and num_tokens > largest:
            raise InvalidRequestError(
                f"The request has {num_tokens} prompt tokens; this key may send {largest} in one.", param
            )
        if self._tokens is None:
            return
        if num_tokens > self._tokens.per_minute:
            raise InvalidRequestError(
                f"The request has {num_tokens} prompt tokens; this key may use {self._tokens.per_minute} a minute.",
                param,
            )
        self._require(self._tokens, num_tokens, "tokens")
        self._tokens.take(num_tokens)

    def take_generated(self, num_tokens: int) -> None:
        """So many were generated for it: what that is too much keeps later requests waiting, never this one."""
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def _require(self, bucket: Bucket, amount: int, what: str) -> None:
        seconds = bucket.seconds_until(amount)
        if seconds > 0:
            message = f"This key may use {bucket.per_minute} {what} a minute; this one fits in {seconds:.1f} s."
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after=whole_seconds(seconds))


def _bucket(per_minute: int | None, clock: Clock) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, clock)
