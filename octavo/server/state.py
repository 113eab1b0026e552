"""What every endpoint shares, and whether requests may come in."""

import asyncio
import enum
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from octavo.engine.client import AsyncEngineClient
from octavo.loading.interface import Tokenizer
from octavo.metrics.prometheus import EngineMetrics
from octavo.server.access.auth import Keyring
from octavo.server.access.sessions import Sessions
from octavo.server.dialect import Dialect, find_dialect
from octavo.server.errors import unavailable
from octavo.server.ledger import Ledger
from octavo.server.queueing.queue import Queue, QueueBounds
from octavo.server.settings import ServerSettings
from octavo.server.structured import Constraints
from octavo.server.tracing.tracing import Tracing
from octavo.server.watching.pool_watch import PoolWatch
from octavo.server.watching.request_log import RequestLog


class Phase(enum.Enum):
    """The value is what a client is told with a 503."""

    LOADING = "The model is still loading."
    READY = "ready"
    DRAINING = "The server is shutting down."
    RESTARTING = "The engine process has ended; another one is being started."
    DEAD = "The engine process has ended."


NUM_TEXTS = 2
"""Are worked at a time."""


def _text_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=NUM_TEXTS, thread_name_prefix="text")


@dataclass(slots=True)
class ServerState:
    """``text_threads`` run what may take long and is not waiting: tokenizing, templates, decoding. ``template_turns``:
    of conversations that are rendered without a thread, so many at a time."""

    settings: ServerSettings
    engine: AsyncEngineClient
    metrics: EngineMetrics
    started_at: int
    phase: Phase = Phase.LOADING
    text_threads: ThreadPoolExecutor = field(default_factory=_text_threads)
    template_turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(NUM_TEXTS))
    longest_token_bytes: int = 0
    queue: Queue = field(init=False)
    keyring: Keyring = field(init=False)
    pool_watch: PoolWatch = field(init=False)
    sessions: Sessions = field(init=False)
    constraints: Constraints = field(init=False)
    request_log: RequestLog = field(default_factory=RequestLog)
    ledger: Ledger = field(default_factory=Ledger)
    tracing: Tracing | None = None
    dialect: Dialect = field(default_factory=Dialect)
    _tokenizer: Tokenizer | None = None

    def __post_init__(self) -> None:
        bounds = QueueBounds(self.settings.max_num_queued_reqs, self.settings.max_num_queued_tokens)
        self.queue = Queue(bounds, self.metrics.count_refused, time.monotonic)
        self.keyring = Keyring(self.settings)
        self.pool_watch = PoolWatch(self.engine.look, time.monotonic)
        self.constraints = Constraints(self.metrics)
        self.sessions = Sessions(time.monotonic)
        self.metrics.watch_queue(lambda: (self.queue.num_requests, self.queue.num_tokens))

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "requests are let in after loading only"
        return self._tokenizer

    def become_ready(self, tokenizer: Tokenizer, longest_token_bytes: int) -> None:
        self._tokenizer = tokenizer
        self.longest_token_bytes = longest_token_bytes
        self.dialect = find_dialect(tokenizer, self.settings.tool_call_parser, self.settings.reasoning_parser)
        self.phase = Phase.READY

    def require_ready(self) -> None:
        """
        Raises:
            ApiError: 503 while loading, draining or dead (spec D24).
        """
        if self.phase is not Phase.READY:
            raise unavailable(self.phase.value)
