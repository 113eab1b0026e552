"""Figures of requests whose answer goes on at another server."""

from octavo.core.request import Request
from octavo.core.scheduler import Scheduler
from octavo.sim.recorder import OpenRequest, Recorder, ServerRecord, SLOs
from octavo.sim.replay import LandedStep


class HandOverRecorder(Recorder):
    """A request that was ``expect``ed to be followed by another does not end with its last token: the other goes on, as
    the same answer to the same client."""

    def __init__(self, schedulers: list[Scheduler], slos: SLOs | None = None) -> None:
        super().__init__(schedulers, slos)
        self._followers: dict[Request, Request] = {}
        self._arriving: set[Request] = set()

    def expect(self, first: Request, then: Request) -> None:
        """When ``first`` ends, ``then`` goes on."""
        self._followers[first] = then

    def reject(self, request: Request, reason: str) -> None:
        self._followers.pop(request, None)
        self._arriving.discard(request)
        super().reject(request, reason)

    def _end(self, request: Request, server: ServerRecord, now: float) -> None:
        then = self._followers.pop(request, None)
        if then is None:
            super()._end(request, server, now)
        else:
            self._open[then] = self._open.pop(request)
            self._arriving.add(then)

    def _land_other(self, open_: OpenRequest, request: Request, server: ServerRecord, step: LandedStep) -> None:
        if request in self._arriving and self._drew(request, step):
            self._arriving.discard(request)
            open_.first_step = server.num_steps + 1  # counted by this server from here on
        super()._land_other(open_, request, server, step)
