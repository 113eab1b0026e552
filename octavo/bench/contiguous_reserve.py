"""Serving from contiguous memory: each sequence gets one piece when it is admitted, for all that it may come to hold.

The ways to reserve are those that "Efficient Memory Management for Large Language Model Serving with PagedAttention"
(Kwon et al., SOSP 2023), section 6.1, compares with: Orca (Max), Orca (Pow2) and Orca (Oracle).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.bench.contiguous import Allocator, Buddy, FirstFit, Piece
from octavo.bench.memory_system import Memory, Sample
from octavo.bench.traces import Lengths
from octavo.core.errors import ConfigurationError


class Reservation(NamedTuple):
    """``slots_for``: how many slots are reserved for a request; ``allocator``: made from the memory's slots."""

    name: str
    slots_for: Callable[[Lengths], int]
    allocator: Callable[[int], Allocator]


def reserve_maximum(max_model_len: int) -> Reservation:
    """The longest sequence there can be, for each."""
    return Reservation("reserve to the maximum", lambda _: max_model_len, FirstFit)


def reserve_power_of_two(max_model_len: int) -> Reservation:
    """The prompt, and for the output the power of two that turns out to suffice: at most twice too much.

    Pieces come from a buddy system, as the paper has it for Orca, and so are powers of two themselves.
    """
    return Reservation(
        "reserve to a power of two",
        lambda request: min(request.prompt + (1 << (request.output - 1).bit_length()), max_model_len),
        Buddy,
    )


def reserve_exactly(allocator: Callable[[int], Allocator]) -> Reservation:
    """The true length of each, which no server knows."""
    how = "buddy system" if allocator is Buddy else "first fit"
    return Reservation(f"all-knowing, {how}", lambda request: request.total, allocator)


@dataclass(slots=True)
class _Sequence:
    """A sequence in its piece: tokens that it will ever write, and those written."""

    request: Lengths
    piece: Piece
    written: int = 0

    @property
    def is_decoding(self) -> bool:
        return self.written >= self.request.prompt

    @property
    def is_done(self) -> bool:
        """The last token that is drawn is never written: nothing follows it."""
        return self.written >= self.request.total - 1


class ContiguousReserve:
    """First come, first served: who does not fit keeps all others waiting, as in Octavo.

    Budgets are spent as Octavo spends them: one token for each sequence that generates, then prompts in chunks, the
    oldest first.

    Raises:
        ConfigurationError: a request would not even fit into empty memory.
    """

    num_preemptions = 0

    def __init__(self, memory: Memory, lengths: Sequence[Lengths], reservation: Reservation) -> None:
        self.name = reservation.name
        self._memory = memory
        self._slots_for = reservation.slots_for
        self._allocator = reservation.allocator(memory.num_slots)
        largest = max(map(reservation.slots_for, lengths), default=1)
        if not self._allocator.can_allocate(largest):
            raise ConfigurationError(
                f"{memory.num_blocks} blocks have no piece of {largest} slots in a row, which one request takes "
                f"({reservation.name}); give more with --num-blocks"
            )
        self._waiting = deque(lengths)
        self._resident: list[_Sequence] = []

    def run(self) -> Iterator[Sample]:
        while self._waiting or self._resident:
            self._compute()
            yield Sample(
                filled_slots=sum(sequence.written for sequence in self._resident),
                held_slots=sum(sequence.piece.size for sequence in self._resident),
                resident=len(self._resident),
                waiting=len(self._waiting),
                blocked=bool(self._waiting) and not self._allocator.can_allocate(self._slots_for(self._waiting[0])),
            )
            for sequence in self._resident:
                if sequence.is_done:
                    self._allocator.free(sequence.piece)
            self._resident = [sequence for sequence in self._resident if not sequence.is_done]

    def _compute(self) -> None:
        """Spend one step's budget."""
        budget = self._memory.max_num_batched_tokens
        decoding = [sequence for sequence in self._resident if sequence.is_decoding]
        behind = [sequence for sequence in self._resident if not sequence.is_decoding]
        for sequence in decoding:
            sequence.written += 1
        budget -= len(decoding)
        while budget and (oldest := behind.pop(0) if behind else self._admit()):
            count = min(budget, oldest.request.prompt - oldest.written)
            oldest.written += count
            budget -= count

    def _admit(self) -> _Sequence | None:
        """The first in line, if there is a place for it."""
        if not self._waiting or len(self._resident) >= self._memory.max_num_seqs:
            return None
        piece = self._allocator.allocate(self._slots_for(self._waiting[0]))
        if piece is None:
            return None
        self._resident.append(_Sequence(self._waiting.popleft(), piece))
        return self._resident[-1]
