"""How long a request may take: what its client said, in headers or fields, and what the server allows.

``X-SLO-TTFT-Ms`` is what inference gateways send (Kubernetes' Gateway API inference extension, llm-d).
"""

from dataclasses import dataclass

from starlette.requests import Request

from octavo.core.errors import InvalidRequestError
from octavo.engine.deadlines import seconds_told
from octavo.engine.messages import Timeout
from octavo.engine.steady_clock import steady_time
from octavo.server.errors import ApiError, timed_out
from octavo.server.plain_numbers import number_in_header
from octavo.server.sampling import SamplingFields
from octavo.server.settings import ServerSettings

TTFT_HEADER = "x-slo-ttft-ms"
TIMEOUT_HEADER = "x-request-timeout-ms"
MOST_MS = 1e12


@dataclass(frozen=True, slots=True)
class Timing:
    """``arrival``: ``steady_time()``. From then on a request may wait ``patience`` seconds for its start, and take
    ``seconds`` in all; None: for ever."""

    arrival: float
    patience: float | None = None
    seconds: float | None = None

    @property
    def start_by(self) -> float | None:
        return None if self.patience is None else self.arrival + self.patience

    @property
    def end_by(self) -> float | None:
        return None if self.seconds is None else self.arrival + self.seconds

    @property
    def seconds_left(self) -> float | None:
        """Until the first of its times is over, for a request that has not begun."""
        end = min((each for each in (self.start_by, self.end_by) if each is not None), default=None)
        return None if end is None else max(0.0, end - steady_time())

    @property
    def first_over(self) -> Timeout:
        """Which of its times is over first, for a request that has not begun and has one."""
        is_wait = self.seconds is None or (self.patience is not None and self.patience <= self.seconds)
        return "queue" if is_wait else "deadline"

    def error(self) -> ApiError:
        """For a request of which a time is over before it has come to the engine."""
        waited = seconds_told(steady_time() - self.arrival)
        if self.first_over == "queue":
            message = f"it has waited {waited} without being started and may wait {self.patience:g} s"
            return timed_out("queue", message, retry_after=1)
        return timed_out(
            "deadline", f"it is not finished after {waited} and may take {self.seconds:g} s", retry_after=1
        )


def timing_of(request: Request, fields: SamplingFields, settings: ServerSettings) -> Timing:
    """The strictest of header, field and setting counts.

    Raises:
        InvalidRequestError: a time that is none.
    """
    patience = [_header(request, TTFT_HEADER), _milliseconds(fields.slo_ttft_ms, "slo_ttft_ms")]
    seconds = [_header(request, TIMEOUT_HEADER), _milliseconds(fields.request_timeout_ms, "request_timeout_ms")]
    return Timing(
        steady_time(),
        _strictest(*patience, settings.max_queue_seconds),
        _strictest(*seconds, settings.max_request_seconds),
    )


def _strictest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)


def _header(request: Request, name: str) -> float | None:
    return _milliseconds(number_in_header(request, name, "milliseconds"), name)


def _milliseconds(value: float | None, name: str) -> float | None:
    """In seconds."""
    if value is None:
        return None
    if not 0 < value <= MOST_MS:  # NaN compares false
        raise InvalidRequestError(f"{name} must be above 0 and at most {MOST_MS:g} milliseconds, got {value:g}.", name)
    return value / 1000
