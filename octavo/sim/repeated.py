"""A trace over and over."""

from collections.abc import Callable, Iterable, Iterator

from octavo.sim.traces.request import TracedRequest


def repeated(read: Callable[[], Iterable[TracedRequest]], times: int) -> Iterator[TracedRequest]:
    """``read``: the requests, from the first one on. Each time they begin as long after the last one of the time before
    as requests come after each other on average. What they share they share with those of other times too."""
    offset = 0.0
    for _ in range(times):
        count, seconds = 0, 0.0
        for request in read():
            count, seconds = count + 1, request.seconds
            yield request._replace(seconds=offset + seconds)
        offset += seconds + (seconds / (count - 1) if count > 1 else 0.0)
