"""What every endpoint shares, and whether requests may come in."""

import enum
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from octavo.engine.client import AsyncEngineClient
from octavo.loading.interface import Tokenizer
from octavo.metrics.prometheus import EngineMetrics
from octavo.server.errors import ApiError, unavailable
from octavo.server.settings import ServerSettings


class Phase(enum.Enum):
    """The value is what a client is told with a 503."""

    LOADING = "The model is still loading."
    READY = "ready"
    DRAINING = "The server is shutting down."
    DEAD = "The engine process has ended."


def _text_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=2, thread_name_prefix="text")


@dataclass(slots=True)
class ServerState:
    """``text_threads`` run what may take long and is not waiting: tokenizing, templates, decoding."""

    settings: ServerSettings
    engine: AsyncEngineClient
    metrics: EngineMetrics
    started_at: int
    phase: Phase = Phase.LOADING
    text_threads: ThreadPoolExecutor = field(default_factory=_text_threads)
    longest_token_bytes: int = 0
    _tokenizer: Tokenizer | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "requests are let in after loading only"
        return self._tokenizer

    def become_ready(self, tokenizer: Tokenizer, longest_token_bytes: int) -> None:
        self._tokenizer = tokenizer
        self.longest_token_bytes = longest_token_bytes
        self.phase = Phase.READY

    def require_ready(self) -> None:
        """
        Raises:
            ApiError: 503 while loading, draining or dead (spec D24).
        """
        if self.phase is not Phase.READY:
            raise unavailable(self.phase.value)

    def require_room(self, num_requests: int, num_tokens: int) -> None:
        """Whether ``num_requests`` more with ``num_tokens`` prompt tokens may join the queue.

        Raises:
            ApiError: 429 where a bound of the queue is met (spec D24).
        """
        settings = self.settings
        queued = self.engine.queued()
        if settings.max_num_queued_reqs is not None and len(queued) + num_requests > settings.max_num_queued_reqs:
            raise self._queue_full(f"{len(queued)} requests are queued; the limit is {settings.max_num_queued_reqs}.")
        num_queued_tokens = sum(stream.num_prompt_tokens for stream in queued)
        if (
            settings.max_num_queued_tokens is not None
            and num_queued_tokens + num_tokens > settings.max_num_queued_tokens
        ):
            raise self._queue_full(
                f"{num_queued_tokens} prompt tokens are queued; the limit is {settings.max_num_queued_tokens}."
            )

    def _queue_full(self, message: str) -> ApiError:
        self.metrics.count_refused("queue_full")
        return ApiError(429, message, code="queue_full", retry_after=1)
