"""The figures of an engine at one moment."""

from collections import Counter
from dataclasses import dataclass, field

from octavo.core.scheduler import Scheduler
from octavo.engine.messages import EngineStats, Timeout


@dataclass(slots=True)
class Endings:
    """Requests that the engine has ended by itself, and why; those that failed by the choice."""

    num_aborted: int = 0
    num_failed: int = 0
    timed_out: Counter[Timeout] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)


def take_snapshot(scheduler: Scheduler, block_bytes: int, endings: Endings) -> EngineStats:
    """Consistent between steps: free + cached + active = all blocks; and of the host pool free + cached + swapped."""
    counters, pool, host = scheduler.counters, scheduler.kv.pool, scheduler.kv.host
    disk, pins = host.disk, scheduler.kv.keeping.pins
    return EngineStats(
        num_running=len(scheduler.running),
        num_waiting=scheduler.num_waiting,
        num_blocks=pool.num_blocks,
        num_free_blocks=pool.num_free - pool.num_cached,
        num_cached_blocks=pool.num_cached,
        num_active_blocks=pool.num_blocks - pool.num_free,
        num_shared_blocks=pool.num_shared,
        num_host_blocks=host.pool.num_blocks,
        num_host_cached_blocks=host.num_cached,
        num_swapped_blocks=host.num_swapped,
        block_size=scheduler.kv.config.block_size,
        prefix_queries=counters.prefix_queries,
        prefix_hits=counters.prefix_hits,
        num_preemptions=counters.num_preemptions,
        num_preempted_tokens=counters.num_preempted_tokens,
        num_swaps=counters.num_swaps,
        swapped_out_blocks=host.num_swapped_out,
        swapped_in_blocks=host.num_swapped_in,
        block_bytes=block_bytes,
        num_disk_blocks=disk.pool.num_blocks,
        num_disk_cached_blocks=disk.pool.num_named,
        disk_written_blocks=disk.num_written,
        disk_read_blocks=disk.num_read,
        prompt_tokens=counters.prompt_tokens,
        generation_tokens=counters.generation_tokens,
        copy_on_write_copies=scheduler.kv.num_copies,
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
