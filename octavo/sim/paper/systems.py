"""The systems that are compared: a scheduler each, and what is in its memory."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from octavo.core.kv_manager import KVCacheManager
from octavo.core.kv_types import CacheConfig
from octavo.core.scheduler import Scheduler
from octavo.core.scheduler_types import ADMISSION_QUANTILE, SchedulerConfig
from octavo.sim.baselines.allocators import Buddy
from octavo.sim.baselines.contiguous import ContiguousScheduler
from octavo.sim.baselines.memory import Memory
from octavo.sim.baselines.reservation import Reservation, reserve_exactly, reserve_maximum, reserve_power_of_two
from octavo.sim.baselines.static import StaticScheduler
from octavo.sim.filled import num_filled_slots
from octavo.sim.paper.machines import MAX_MODEL_LEN
from octavo.sim.replay import Steps


class Occupancy(Protocol):
    """What is in memory now, or will be when the step that was planned lands. ``filled_slots`` hold a token of a
    running request (a shared one counts once); ``held_slots`` are given to such."""

    @property
    def filled_slots(self) -> int: ...

    @property
    def held_slots(self) -> int: ...

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_preemptions(self) -> int: ...


class PagedOccupancy:
    """Of the engine's own scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    @property
    def filled_slots(self) -> int:
        return num_filled_slots(self._scheduler)

    @property
    def held_slots(self) -> int:
        pool = self._scheduler.kv.pool
        return (pool.num_blocks - pool.num_free) * self._scheduler.kv.config.block_size

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def num_preemptions(self) -> int:
        return self._scheduler.counters.num_preemptions


class System(NamedTuple):
    """``make``: a scheduler with this memory, and its occupancy."""

    name: str
    make: Callable[[Memory], tuple[Steps, Occupancy]]


def paged(name: str = "Octavo", quantile: float = ADMISSION_QUANTILE) -> System:
    """The engine's own. ``quantile``: how far admission looks ahead."""

    def make(memory: Memory) -> tuple[Steps, Occupancy]:
        config = SchedulerConfig(
            max_num_seqs=memory.max_num_seqs,
            max_num_batched_tokens=memory.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            admission_quantile=quantile,
        )
        scheduler = Scheduler(config, KVCacheManager(CacheConfig(memory.num_blocks, memory.block_size)))
        return scheduler, PagedOccupancy(scheduler)

    return System(name, make)


def contiguous(name: str, reservation: Reservation) -> System:
    """Continuous batching over contiguous memory."""

    def make(memory: Memory) -> tuple[Steps, Occupancy]:
        scheduler = ContiguousScheduler(memory, reservation)
        return scheduler, scheduler

    return System(name, make)


def static(name: str, reservation: Reservation) -> System:
    """Static batches over contiguous memory."""

    def make(memory: Memory) -> tuple[Steps, Occupancy]:
        scheduler = StaticScheduler(memory, reservation)
        return scheduler, scheduler

    return System(name, make)


STATIC = static("static batches, maximum", reserve_maximum(MAX_MODEL_LEN))
MAXIMUM = contiguous("Orca (Max)", reserve_maximum(MAX_MODEL_LEN))
POWER_OF_TWO = contiguous("Orca (Pow2)", reserve_power_of_two(MAX_MODEL_LEN))
ORACLE = contiguous("Orca (Oracle)", reserve_exactly(Buddy))
PAGED = paged()
ALLOCATOR_ALONE = paged("Octavo, not looking ahead", 0.0)
"""Whoever fits at the moment comes in, as with the paper's system."""

SYSTEMS = (STATIC, MAXIMUM, POWER_OF_TWO, ORACLE, ALLOCATOR_ALONE, PAGED)
