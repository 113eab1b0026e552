"""The figures of an engine at one moment."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.core.block_states import slot_use
from octavo.core.scheduler import Scheduler
from octavo.core.step import RunnerSeconds
from octavo.engine.messages import EngineStats, Timeout


@dataclass(slots=True)
class Endings:
    """Requests that the engine has ended by itself, and why; those that failed by the choice."""

    num_aborted: int = 0
    num_failed: int = 0
    timed_out: Counter[Timeout] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Swaps:
    """``block_bytes``: of keys and values; seconds spent copying blocks to the host pool and back."""

    block_bytes: int
    out_seconds: float = 0.0
    in_seconds: float = 0.0

    def note(self, seconds: RunnerSeconds) -> None:
        self.out_seconds += seconds.swap_out
        self.in_seconds += seconds.swap_in


def take_snapshot(scheduler: Scheduler, swaps: Swaps, endings: Endings, head_since: float | None) -> EngineStats:
    """Consistent between steps: free + cached + idly pinned + active = all blocks; and of the host pool free + cached +
    swapped. ``head_since``: see EngineStats. What it takes grows with the running requests and the pinned blocks."""
    counters, kv, host = scheduler.counters, scheduler.kv, scheduler.kv.host
    disk, pins = host.disk, kv.keeping.pins
    states, use = kv.block_states(), slot_use(scheduler.with_blocks, kv.config.block_size)
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting=scheduler.num_waiting,
        num_blocks=kv.config.num_blocks,
        num_free_blocks=states.free,
        num_cached_blocks=states.cached,
        num_active_blocks=states.active,
        num_shared_blocks=states.shared,
        num_idle_pinned_blocks=states.pinned,
        num_allocatable_blocks=scheduler.admission.num_blocks_now(),
        max_prompt_tokens=scheduler.admission.most_tokens_now(scheduler.door.max_tokens_per_sequence),
        num_slots=use.num_slots,
        num_filled_slots=use.num_filled,
        num_saved_blocks=use.num_saved_blocks,
        head_since=head_since,
        num_host_blocks=host.pool.num_blocks,
        num_host_cached_blocks=host.num_cached,
        num_swapped_blocks=host.num_swapped,
        block_size=kv.config.block_size,
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
        num_evicted_blocks=kv.pool.num_evicted,
        num_preemptions=counters.num_preemptions,
        num_preempted_tokens=counters.num_preempted_tokens,
        num_swaps=counters.num_swaps,
        swapped_out_blocks=host.num_swapped_out,
        swapped_in_blocks=host.num_swapped_in,
        swap_out_seconds=swaps.out_seconds,
        swap_in_seconds=swaps.in_seconds,
        block_bytes=swaps.block_bytes,
        num_disk_blocks=disk.pool.num_blocks,
        num_disk_cached_blocks=disk.pool.num_named,
        disk_written_blocks=disk.num_written,
        disk_read_blocks=disk.num_read,
        prompt_tokens=counters.prompt_tokens,
        generation_tokens=counters.generation_tokens,
        copy_on_write_copies=kv.num_copies,
        num_forked_tokens=counters.num_forked_tokens,
        num_pins=len(pins),
        num_pinned_blocks=pins.num_blocks,
        max_pinned_blocks=pins.max_blocks,
        num_steps=counters.num_steps,
        num_drafts=counters.num_drafts,
        num_draft_tokens=counters.num_draft_tokens,
        num_accepted_tokens=counters.num_accepted_tokens,
        aborted=endings.num_aborted,
        failed=endings.num_failed,
        timed_out=dict(endings.timed_out),
        rejected=dict(endings.rejected),
        pins_refused=dict(pins.refusals),
        tenants=scheduler.tenant_counts(),
    )


LEAST_SECONDS = 0.05
"""Between two snapshots of an engine that works: nobody looks oftener."""

SHARE = 100
"""At most one part in so many of the engine's time goes into snapshots."""


class SnapshotPace:
    """When the next is due, of an engine that works. ``clock`` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = clock()

    def is_due(self) -> bool:
        return self._clock() >= self._next

    def hasten(self) -> None:
        """Somebody is waiting for it."""
        self._next = self._clock()

    def take(self, stats: Callable[[], EngineStats]) -> EngineStats:
        start = self._clock()
        taken = stats()
        self._next = start + max(LEAST_SECONDS, SHARE * (self._clock() - start))
        return taken
