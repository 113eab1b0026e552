"""What goes into the engine and comes out of it; msgspec carries the same values between processes."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec

from octavo.core.beam_search import BeamSearchParams
from octavo.core.errors import InvalidRequestError
from octavo.core.pin_types import PinInfo, PinRefusal, PinReport, PinWish
from octavo.core.retention import Retention
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import Pooling, TokenLogprobs
from octavo.core.tenants import DEFAULT_TENANT, TenantCounts
from octavo.engine.looks import View
from octavo.engine.traces import RequestTrace

Timeout = Literal["queue", "deadline"]
"""Why a request was ended by time: it had not started by then, or not finished."""

TIMEOUTS: tuple[Timeout, ...] = get_args(Timeout)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A tokenized request. ``clamp_max_tokens``: shorten ``params.max_tokens`` to the room left instead of refusing
    (true where the number is a default and not the client's; spec D2). ``arrival_time``: ``steady_time()``.
    ``cache_salt``: share cached tokens with requests of the same salt only, but for the first ``num_open_tokens`` of
    the prompt, which are shared with all. ``beam_search``: search instead of drawing; its choices are the finished
    sequences, best first, and come whole. Of ``params`` only ``skip_special_tokens`` and ``shown_token_ids``
    count then.
    ``priority``: the lowest goes first, where that is the policy; ``tenant``: who asks, a short name, for policy and
    statistics.
    ``pins``: heads of the prompt to keep in the cache; ``retention``: how long it keeps what the request leaves.
    ``start_by``, ``end_by``: it is ended with an error if no step has computed any of it by then, or if it has not
    finished; times as ``arrival_time``. None: no such bound.
    ``pooling``: a vector of the prompt is wanted; comes with the first delta."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float
    clamp_max_tokens: bool = False
    priority: int = 0
    cache_salt: str | None = None
    num_open_tokens: int = 0
    beam_search: BeamSearchParams | None = None
    pins: tuple[PinWish, ...] = ()
    retention: Retention | None = None
    start_by: float | None = None
    end_by: float | None = None
    tenant: str = DEFAULT_TENANT
    pooling: Pooling | None = None

    @property
    def num_choices(self) -> int:
        return self.params.n if self.beam_search is None else self.beam_search.beam_width


class OutputDelta(msgspec.Struct, omit_defaults=True):
    """News of one choice of one request: new text and tokens since the last delta.

    There is one a token, and on the wire nearly all of its fields would say that there is nothing: these are left out.
    ``finish_reason`` is set exactly once, in a choice's last delta: "stop", "length", "abort" or "error" (then
    ``error`` says why, in one sentence; ``invalid_param`` is not None where the request was refused at the door,
    ``""`` if no single field is to blame, and ``invalid_code`` is its code; ``timeout`` where its time was over).
    ``prompt_logprobs`` comes with the first delta, one entry a prompt token, the first None.
    ``cumulative_logprob``: of a beam search's sequence. ``pin_report``: once, of a request that has asked for pins.
    ``text`` never holds part of a character or of an undecided stop string.
    ``embedding``: once, of a request that pools, fp64 [hidden_size], not normalised.
    """

    request_id: str
    index: int
    text: str = ""
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    cumulative_logprob: float | None = None
    error: str | None = None
    invalid_param: str | None = None
    pin_report: PinReport | None = None
    timeout: Timeout | None = None
    embedding: list[float] | None = None
    invalid_code: str = InvalidRequestError.code


@dataclass(slots=True)
class RequestTimes:
    """When things happened to a finished choice, ``steady_time()``; for the histograms and ``RequestOutput.metrics``.
    ``scheduled``, ``first_token``: None where it did not get there; a beam search never tells a first token."""

    request_id: str
    index: int
    arrival: float
    scheduled: float | None
    first_token: float | None
    finished: float
    num_prompt_tokens: int
    num_generation_tokens: int
    finish_reason: str


@dataclass(slots=True)
class StepSeconds:
    """Where the time of a step went: to decide what it computes; to compute it; to draw tokens; and from there to the
    news of them: bookkeeping, stop strings, text, and the message to the server."""

    plan: float
    compute: float
    sample: float
    reply: float


@dataclass(slots=True)
class EngineStats:
    """One consistent snapshot of the engine, taken between steps. Counters count since start.

    Each block is free, cached, idly pinned (in no table) or active; ``num_pinned_blocks`` are all that pins hold.
    ``num_allocatable_blocks``, ``max_prompt_tokens``: what a request could get that came now and was first in line (see
    ``Admission``). ``num_slots``, ``num_filled_slots``, ``num_saved_blocks``: see SlotUse. ``head_since``: since when
    the first in line waits, as ``EngineRequest.arrival_time``; None: nobody does. ``timed_out``: requests ended by
    time."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_active_blocks: int = 0
    num_shared_blocks: int = 0
    num_idle_pinned_blocks: int = 0
    num_allocatable_blocks: int = 0
    max_prompt_tokens: int = 0
    num_slots: int = 0
    num_filled_slots: int = 0
    num_saved_blocks: int = 0
    head_since: float | None = None
    num_host_blocks: int = 0
    num_host_cached_blocks: int = 0
    num_swapped_blocks: int = 0
    block_size: int = 0
    block_bytes: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_evicted_blocks: int = 0
    num_preemptions: int = 0
    num_preempted_tokens: int = 0
    num_swaps: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    swap_out_seconds: float = 0.0
    swap_in_seconds: float = 0.0
    num_disk_blocks: int = 0
    num_disk_cached_blocks: int = 0
    disk_written_blocks: int = 0
    disk_read_blocks: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    copy_on_write_copies: int = 0
    num_forked_tokens: int = 0
    num_pins: int = 0
    num_pinned_blocks: int = 0
    max_pinned_blocks: int = 0
    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    aborted: int = 0
    failed: int = 0
    timed_out: dict[Timeout, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    pins_refused: dict[PinRefusal, int] = field(default_factory=dict)
    tenants: dict[str, TenantCounts] = field(default_factory=dict)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that are pinned or in use, 0 to 1. Cached ones that nobody refers to count as free (spec
        D23)."""
        taken = self.num_active_blocks + self.num_idle_pinned_blocks
        return taken / self.num_blocks if self.num_blocks else 0.0


@dataclass(slots=True)
class PinList:
    """Answer to call ``call_id``: the pins there are now, and whether the one that it was to release was there."""

    call_id: int
    pins: list[PinInfo]
    was_found: bool = False


@dataclass(slots=True)
class TraceList:
    """Answer to call ``call_id``."""

    call_id: int
    traces: list[RequestTrace]


@dataclass(slots=True)
class EngineOutputs:
    """What one turn of the engine loop produced. ``stats``: put in by whoever sends it to another process.
    ``iteration_tokens``: tokens computed in the step. ``started``: requests that wait no longer.
    ``first_token_seconds``: from arrival to the first token of a choice (TTFT), and beside it ``cached_shares``, what
    of its prompt was cached, 0 to 1; ``token_intervals``: between successive tokens of one (ITL). All are of tokens
    that were drawn one by one, not of beam searches. ``steps``: of each step that landed."""

    deltas: list[OutputDelta] = field(default_factory=list)
    stats: EngineStats | None = None
    finished: list[RequestTimes] = field(default_factory=list)
    first_token_seconds: list[float] = field(default_factory=list)
    cached_shares: list[float] = field(default_factory=list)
    token_intervals: list[float] = field(default_factory=list)
    steps: list[StepSeconds] = field(default_factory=list)
    iteration_tokens: int = 0
    pin_lists: list[PinList] = field(default_factory=list)
    trace_lists: list[TraceList] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
