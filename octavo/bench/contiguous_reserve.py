"""Serving from contiguous memory, step by step: every request is there from the start."""

from collections.abc import Iterator, Sequence

from octavo.bench.memory_system import Sample
from octavo.bench.traces import Lengths
from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.sim.baselines.contiguous import ContiguousScheduler
from octavo.sim.baselines.memory import Memory
from octavo.sim.baselines.reservation import Reservation
from octavo.sim.runner import draw_row_ids


class ContiguousReserve:
    """See ContiguousScheduler.

    Raises:
        ConfigurationError: a request would not even fit into empty memory.
    """

    num_preemptions = 0

    def __init__(self, memory: Memory, lengths: Sequence[Lengths], reservation: Reservation) -> None:
        self.name = reservation.name
        self._scheduler = ContiguousScheduler(memory, reservation)
        for number, request in enumerate(lengths):
            try:
                self._scheduler.door.check(*request)
            except InvalidRequestError as error:
                raise ConfigurationError(f"{error} with --num-blocks") from error
            self._scheduler.add(Request(str(number), [0] * request.prompt, SamplingParams(), max_tokens=request.output))

    def run(self) -> Iterator[Sample]:
        scheduler = self._scheduler
        while scheduler.has_work:
            plan = scheduler.schedule()
            yield Sample(
                filled_slots=scheduler.filled_slots,
                held_slots=scheduler.held_slots,
                resident=scheduler.num_running,
                waiting=scheduler.num_waiting,
                blocked=scheduler.is_blocked,
            )
            scheduler.update(draw_row_ids(plan))
