"""Seconds since the epoch that nobody sets: what the machine's clock said when the first process started, and from then
on only what has passed. So latencies and deadlines are right, too, where the machine's clock is put forward or back."""

import time


class SteadyClock:
    """``epoch``: its difference to the monotonic clock, which all processes of a machine share. A process that is
    started for another one takes over that one's."""

    def __init__(self) -> None:
        self.epoch = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self.epoch + time.monotonic()


steady_time = SteadyClock()
