"""The line before the engine as the server counts it: who may join, and when another try makes sense (spec D24).

A request is counted from before its text is tokenized until the engine starts it, or it ends. Counting, refusing and
leaving happen on the event loop without a wait between, so no burst passes a bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from types import TracebackType
from typing import NamedTuple, Self

from octavo.core.errors import InvalidRequestError
from octavo.server.errors import ApiError
from octavo.server.queueing.drain_rate import DrainRate
from octavo.server.queueing.promises import Promises, Share

LONGEST_RETRY_SECONDS = 60
"""Clients that obey Retry-After give up, or use their own times, where it is longer."""


class Terms(NamedTuple):
    """What is asked for: see ``Queue.enter``."""

    param: str
    patience: float | None


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """None: no bound."""

    max_requests: int | None = None
    max_tokens: int | None = None


class Queue:
    """``count_refused``: told why one was refused. ``clock``: seconds that only grow."""

    def __init__(self, bounds: QueueBounds, count_refused: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._bounds = bounds
        self._count_refused = count_refused
        self._rate = DrainRate(clock)
        self._promises = Promises(LONGEST_RETRY_SECONDS, clock)
        self.num_requests = 0
        self.num_tokens = 0

    def enter(self, share: Share, param: str = "prompt", patience: float | None = None) -> "Place":
        """Join with so many choices and, for now, the fewest tokens that the prompts can have.

        ``param``: the field that they come from. ``patience``: seconds in which the first token is wanted, if any.

        Raises:
            ApiError: 429 where a bound is met, or ``patience`` would be too short.
            InvalidRequestError: it is larger than a bound, and would be refused at any time.
        """
        terms = Terms(param, patience)
        self.check(share, terms)
        return Place(self, share, terms)

    def check(self, share: Share, terms: Terms) -> None:
        """May ``share`` more join? Raises as ``enter``."""
        self._check_room(share, terms.param)
        self._check_wait(share, terms.patience)

    def _check_room(self, share: Share, param: str) -> None:
        bounds, rate = self._bounds, self._rate
        if bounds.max_requests is not None:
            excess = self.num_requests + share.num_requests - bounds.max_requests
            if share.num_requests > bounds.max_requests:
                raise _never_fits(f"{share.num_requests} choices", bounds.max_requests, "reqs", "n")
            if excess > 0:
                state = f"{self.num_requests} requests are queued; the limit is {bounds.max_requests}."
                seconds = rate.seconds_for_requests(excess + self._promises.ahead().num_requests % bounds.max_requests)
                raise self._full(state, share, seconds)
        if bounds.max_tokens is not None:
            excess = self.num_tokens + share.num_tokens - bounds.max_tokens
            if share.num_tokens > bounds.max_tokens:
                raise _never_fits(f"{share.num_tokens} prompt tokens", bounds.max_tokens, "tokens", param)
            if excess > 0:
                state = f"{self.num_tokens} prompt tokens are queued; the limit is {bounds.max_tokens}."
                seconds = rate.seconds_for_tokens(excess + self._promises.ahead().num_tokens % bounds.max_tokens)
                raise self._full(state, share, seconds)

    def _check_wait(self, share: Share, patience: float | None) -> None:
        if patience is None or not self.num_requests:
            return
        wait = self._rate.predicted_wait(self.num_tokens + share.num_tokens)
        if wait is not None and wait > patience:
            self._count_refused("queue_slow")
            raise ApiError(
                429,
                f"{self.num_tokens} prompt tokens are queued before this request; by what is computed a second its "
                f"first token would come after {wait:.1f} s, but it may take {patience:g} s.",
                code="queue_slow",
                retry_after=self._promise(share, wait - patience + self._seconds_of_turns()),
            )

    def retry_after(self, share: Share) -> int:
        """Seconds until what waits now has left: for one that has waited too long."""
        seconds = self._rate.seconds_for_tokens(self.num_tokens)
        return self._promise(share, None if seconds is None else seconds + self._seconds_of_turns())

    def _full(self, message: str, share: Share, seconds: float | None) -> ApiError:
        self._count_refused("queue_full")
        return ApiError(429, message, code="queue_full", retry_after=self._promise(share, seconds))

    def _seconds_of_turns(self) -> float:
        """How much later than by what waits one is to come, since others were told to come back before it: one after
        the other in the time in which the queue empties once, then from the beginning."""
        num_tokens = self._promises.ahead().num_tokens % max(1, self.num_tokens)
        return self._rate.seconds_for_tokens(num_tokens) or 0.0

    def _promise(self, share: Share, seconds: float | None) -> int:
        """What it is told, which counts for those who are refused after it."""
        told = whole_seconds(seconds)
        self._promises.note(share, told)
        return told

    def join(self, share: Share) -> None:
        """``share`` waits from now on."""
        self._change(share, 1)

    def leave(self, share: Share, *, is_started: bool) -> None:
        """It waits no more: the engine has started it, or it has ended."""
        if is_started:
            self._rate.note_started(*share)
        self._change(share, -1)

    def _change(self, share: Share, sign: int) -> None:
        self.num_requests += sign * share.num_requests
        self.num_tokens += sign * share.num_tokens
        self._rate.note_waiting(self.num_requests > 0)


def _never_fits(what: str, bound: int, flag: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"This request has {what}, more than may ever wait: {bound} (--max-num-queued-{flag}).", param
    )


class Place:
    """What one HTTP request has in the queue, prompt by prompt. As a context it is left when something fails inside;
    whoever runs the request says when it starts, and leaves at its end."""

    def __init__(self, queue: Queue, share: Share, terms: Terms) -> None:
        self._queue = queue
        self._terms = terms
        self._shares = {0: share}
        queue.join(share)

    def settle(self, num_choices: int, lengths: Sequence[int]) -> None:
        """The prompts have ``lengths`` tokens, and ``num_choices`` choices each.

        Raises:
            ApiError, InvalidRequestError: as ``Queue.enter``; the place is lost then.
        """
        self.leave()
        self._queue.check(Share(num_choices * len(lengths), sum(lengths)), self._terms)
        self._shares = {index: Share(num_choices, length) for index, length in enumerate(lengths)}
        for share in self._shares.values():
            self._queue.join(share)

    def start(self, prompt_index: int) -> None:
        """The engine computes this prompt, or has done so."""
        share = self._shares.pop(prompt_index, None)
        if share is not None:
            self._queue.leave(share, is_started=True)

    def end(self, prompt_index: int) -> None:
        """This prompt has ended; if it was never started, it waits no more."""
        share = self._shares.pop(prompt_index, None)
        if share is not None:
            self._queue.leave(share, is_started=False)

    def leave(self) -> None:
        """All of it has ended."""
        for prompt_index in list(self._shares):
            self.end(prompt_index)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.leave()


def whole_seconds(seconds: float | None) -> int:
    """For Retry-After: at least 1, which is also what is said where nothing is known, and at most a minute."""
    return 1 if seconds is None else max(1, min(LONGEST_RETRY_SECONDS, ceil(seconds)))
