"""Pieces of contiguous memory for requests."""

from octavo.core.errors import TooLongError
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.sim.baselines.allocators import Piece
from octavo.sim.baselines.memory import Memory
from octavo.sim.baselines.reservation import Reservation


class Pieces:
    """One piece a request, as large as the reservation says."""

    def __init__(self, memory: Memory, reservation: Reservation) -> None:
        self._slots_for = reservation.slots_for
        self._allocator = reservation.allocator(memory.num_slots)

    def can_take(self, request: Request) -> bool:
        return self._allocator.can_allocate(self._slots_for(request))

    def take(self, request: Request) -> Piece | None:
        """None, with nothing changed, if no free piece is large enough."""
        return self._allocator.allocate(self._slots_for(request))

    def give_back(self, piece: Piece) -> None:
        self._allocator.free(piece)


class PiecesDoor:
    """What can run at all: what one piece of the empty memory holds."""

    def __init__(self, memory: Memory, reservation: Reservation) -> None:
        self._memory = memory
        self._reservation = reservation
        self._empty = Pieces(memory, reservation)

    def check(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """
        Raises:
            InvalidRequestError: such a request never fits.
        """
        request = Request("", [0] * num_prompt_tokens, SamplingParams(), max_tokens=max_tokens)
        num_slots = self._reservation.slots_for(request)
        if num_prompt_tokens + max_tokens > num_slots or not self._empty.can_take(request):
            raise TooLongError(
                f"{self._memory.num_slots} slots have no piece of {num_slots} in a row that holds "
                f"{num_prompt_tokens + max_tokens} tokens ({self._reservation.name}); give more memory",
                "max_tokens",
            )
