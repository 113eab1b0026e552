"""Who waits for a piece of memory: first come, first served, and who does not fit keeps all others waiting."""

from abc import ABC, abstractmethod
from collections import deque

from octavo.core.request import Request, Status
from octavo.sim.baselines.allocators import Piece
from octavo.sim.baselines.memory import Memory
from octavo.sim.baselines.pieces import Pieces, PiecesDoor
from octavo.sim.baselines.reservation import Reservation


class PieceScheduler(ABC):
    """What schedulers that give each request one piece of memory have in common. Nobody is ever preempted."""

    num_preemptions = 0

    def __init__(self, memory: Memory, reservation: Reservation) -> None:
        self.door = PiecesDoor(memory, reservation)
        self._memory = memory
        self._pieces = Pieces(memory, reservation)
        self._waiting: deque[Request] = deque()
        self._num_steps = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    @abstractmethod
    def num_running(self) -> int:
        """Requests that have a piece."""

    @property
    def has_work(self) -> bool:
        return bool(self.num_waiting or self.num_running)

    @property
    def is_blocked(self) -> bool:
        """Is there no piece for the first in line?"""
        return bool(self._waiting) and not self._pieces.can_take(self._waiting[0])

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def _admit(self) -> tuple[Request, Piece] | None:
        """The first in line, if there is a place for it, which it has now."""
        if not self._waiting or self.num_running >= self._memory.max_num_seqs:
            return None
        piece = self._pieces.take(self._waiting[0])
        if piece is None:
            return None
        request = self._waiting.popleft()
        request.move_to(Status.RUNNING)
        return request, piece
