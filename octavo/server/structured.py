"""What a request asks its answers to be: ``response_format``, ``structured_outputs``, ``guided_*``."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import ANY_OBJECT, Constraint, StructuredLimits, as_constraint, constraint_of, json_schema
from octavo.metrics.prometheus import EngineMetrics
from octavo.server.errors import ApiError
from octavo.server.queueing.fair_turns import FairTurns
from octavo.server.queueing.timing import Timing
from octavo.server.sampling import GUIDED_FIELDS, ResponseFormat, SamplingFields
from octavo.server.tools.closed_schema import closed
from octavo.structured.checker import ConstraintChecker

NUM_THREADS = 2
"""Constraints are tried so many at a time."""

MAX_WAITING = 64
"""Of one tenant. Beyond these nobody of it could be answered in time."""


def asked_constraint(fields: SamplingFields, limits: StructuredLimits) -> Constraint | None:
    """
    Raises:
        InvalidRequestError: two kinds at once, or what stands for nothing; ``param`` names the field.
    """
    asked = _asked(fields)
    if not asked:
        return None
    if len(asked) > 1:
        listed = ", ".join(asked)
        raise InvalidRequestError(f"An answer can be constrained by one field only, got {listed}.", list(asked)[-1])
    ((name, value),) = asked.items()
    if name in GUIDED_FIELDS:
        value = constraint_of(GUIDED_FIELDS[name], value, name)
    return as_constraint(value, limits, name)


def constraint_field(fields: SamplingFields) -> str:
    """The field that asks for a constraint."""
    return next(iter(_asked(fields)), "structured_outputs")


def _asked(fields: SamplingFields) -> dict[str, Any]:
    """The fields that ask for a constraint, and what each holds; of ``response_format`` the constraint."""
    asked: dict[str, Any] = {}
    if fields.response_format is not None and fields.response_format.type != "text":
        asked["response_format"] = _of_response_format(fields.response_format)
    if fields.structured_outputs is not None:
        asked["structured_outputs"] = fields.structured_outputs
    for name, kind in GUIDED_FIELDS.items():
        value = getattr(fields, name)
        if value is not None and not (kind == "json_object" and value is False):
            asked[name] = value
    return asked


def _of_response_format(form: ResponseFormat) -> Constraint:
    """What is sent is followed to the letter, or refused; ``strict`` closes objects that leave open what they hold."""
    name = "response_format"
    if form.type == "json_object":
        return json_schema(ANY_OBJECT, name)
    if form.type != "json_schema":
        raise InvalidRequestError(
            f"response_format.type must be text, json_object or json_schema, got {form.type[:40]!r}.", name
        )
    schema = None if form.json_schema is None else form.json_schema.schema
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError("response_format.json_schema.schema must be a JSON schema.", name)
    if form.json_schema is not None and form.json_schema.strict and isinstance(schema, dict):
        schema = closed(schema)
    if form.json_schema is not None and form.json_schema.strict and isinstance(schema, dict):
        schema = closed(schema)
    return json_schema(schema, name)


class Constraints:
    """Tries constraints before their requests are let in, on threads of its own, each in a process of its own."""

    def __init__(self, metrics: EngineMetrics) -> None:
        """``metrics``: count those that end here."""
        self._metrics = metrics
        self._checker = ConstraintChecker()
        self._threads = ThreadPoolExecutor(NUM_THREADS, "octavo-constraints")
        self._turns = FairTurns(NUM_THREADS, MAX_WAITING)

    async def check(self, constraint: Constraint | None, param: str, timing: Timing, tenant: str) -> None:
        """
        Raises:
            InvalidRequestError: it cannot be followed, or takes too long to compile or too much memory.
            ApiError: 429 where too many wait for this; or a time of the request is over before it is tried.
        """
        if constraint is None or self._checker.knows(constraint):
            return
        if self._turns.is_full(tenant):
            self._metrics.count_refused("queue_full")
            message = "Too many new schemas and grammars have come at once."
            raise ApiError(429, message, code="queue_full", param=param, retry_after=1)
        try:
            async with asyncio.timeout(timing.seconds_left):
                await self._turns.take(tenant)
                await asyncio.wrap_future(self._begin(constraint, param))
        except TimeoutError:
            self._metrics.count_timed_out(timing.first_over)
            raise timing.error() from None

    def _begin(self, constraint: Constraint, param: str) -> Future[None]:
        """A turn, once taken, is over when the thread is free, though nobody may wait for it any more."""
        loop = asyncio.get_running_loop()

        def give_up(_: Future[None]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._turns.give_up)

        trial = self._threads.submit(self._checker.check, constraint, param)
        trial.add_done_callback(give_up)
        return trial

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._checker.close()
