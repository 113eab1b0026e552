"""The requests that run, in order of rank, and how far each has caught up."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from octavo.core.decode_batch import DecodeBatch
from octavo.core.request import Request

_rank = attrgetter("rank")


class RunningSet:
    """Requests that hold blocks and a row. Each is a member of ``batch`` (it lacks exactly one token) or is listed in
    ``behind`` (it lacks more, or waits in place, or has none left to compute)."""

    def __init__(self, block_size: int) -> None:
        self.batch = DecodeBatch(block_size)
        self.behind: list[Request] = []
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        """A request was admitted: it starts behind."""
        insort(self._requests, request, key=_rank)
        insort(self.behind, request, key=_rank)

    def remove(self, request: Request) -> None:
        """A request ended or was preempted."""
        _take_out(self._requests, request)
        if request.batch is None:
            _take_out(self.behind, request)
        else:
            self.batch.leave(request)

    def catch_up(self, request: Request) -> None:
        """A request that was behind goes on in the batch."""
        _take_out(self.behind, request)
        self.batch.join(request)

    def fall_behind(self, request: Request) -> None:
        """A member of the batch cannot take part in the next step."""
        self.batch.leave(request)
        insort(self.behind, request, key=_rank)

    def dissolve_batch(self) -> None:
        for request in self.batch.roster.requests:
            self.fall_behind(request)

    @property
    def last(self) -> Request:
        """The last in rank."""
        return self._requests[-1]

    def idle_after(self, request: Request) -> Iterator[Request]:
        """Those after ``request`` in rank that no step in flight, nor the one being planned, computes."""
        return (other for other in self.after(request) if other.num_in_flight == 0)

    def after(self, request: Request) -> list[Request]:
        """Those after ``request`` in rank, which may be one that waits."""
        return self._requests[bisect_left(self._requests, request.rank + 1, key=_rank) :]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


def _take_out(requests: list[Request], request: Request) -> None:
    del requests[bisect_left(requests, request.rank, key=_rank)]
