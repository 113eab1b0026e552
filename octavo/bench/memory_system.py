"""What a way to give KV memory to sequences is measured by: what is in the memory, step by step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from statistics import fmean
from typing import NamedTuple, Protocol

from octavo.sim.baselines.memory import Memory


class Sample(NamedTuple):
    """One step. ``filled_slots`` hold a token of a live sequence when it lands (a shared one counts once);
    ``held_slots`` are given to live sequences; ``blocked``: there was budget to admit a waiting request, but no room.
    """

    filled_slots: int
    held_slots: int
    resident: int
    waiting: int
    blocked: bool


class System(Protocol):
    """A way to give KV memory to sequences, run step by step."""

    @property
    def name(self) -> str: ...

    @property
    def num_preemptions(self) -> int: ...

    def run(self) -> Iterator[Sample]: ...


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """One system's run. ``filled_share`` (of all slots) is a mean over the steps in which requests wait;
    ``filled_share_once_full``, ``held_share`` and ``resident`` (sequences) over those from the first in which memory
    kept a request out. None where there were none.
    """

    system: str
    filled_share: float | None
    filled_share_once_full: float | None
    held_share: float | None
    resident: float | None
    num_preemptions: int
    num_steps: int
    num_steps_waiting: int
    num_steps_short_of_memory: int


def measure(system: System, memory: Memory) -> MemoryFigures:
    """Runs ``system`` to its end."""
    samples = list(system.run())
    waiting = [sample for sample in samples if sample.waiting]
    short = list(dropwhile(lambda sample: not sample.blocked, waiting))
    slots = memory.num_slots
    return MemoryFigures(
        system=system.name,
        filled_share_once_full=mean_or_none([sample.filled_slots / slots for sample in short]),
        held_share=mean_or_none([sample.held_slots / slots for sample in short]),
        resident=mean_or_none([sample.resident for sample in short]),
        filled_share=mean_or_none([sample.filled_slots / slots for sample in waiting]),
        num_preemptions=system.num_preemptions,
        num_steps=len(samples),
        num_steps_waiting=len(waiting),
        num_steps_short_of_memory=len(short),
    )


def mean_or_none(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
