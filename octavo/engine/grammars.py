"""Requests whose answers are constrained: they get in line once their grammars are compiled, off the step."""

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint
from octavo.engine.messages import EngineRequest

PATIENCE_SECONDS = 0.005
"""How long an engine without other work looks away while a grammar is compiled."""


class GrammarCompiler(Protocol):
    """``begin``: the future's result is the grammar, kept as long as anybody holds it; or an InvalidRequestError."""

    def begin(self, constraint: Constraint) -> "Future[Any]": ...

    def close(self) -> None: ...


class Grammars:
    """Holds requests until their grammars are there, and the grammars of open ones (``drop`` says that one has ended).

    ``compiler`` None: constraints are refused.
    """

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        self._compiler = compiler
        self._held: dict[str, EngineRequest] = {}
        self._grammars: dict[str, Future[Any]] = {}

    def __contains__(self, request_id: str) -> bool:
        """Is it held?"""
        return request_id in self._held

    def hold(self, request: EngineRequest) -> bool:
        """Whether the request has to wait. If so it comes out of ``take_ready``.

        Raises:
            InvalidRequestError: constraints are not supported here, or this one was refused already.
        """
        constraint = request.params.constraint
        if constraint is None:
            return False
        if self._compiler is None:
            raise InvalidRequestError("structured_outputs is not supported by this engine", "structured_outputs")
        grammar = self._compiler.begin(constraint)
        if grammar.done():
            _check(grammar)
            self._grammars[request.request_id] = grammar
            return False
        self._grammars[request.request_id] = grammar
        self._held[request.request_id] = request
        return True

    @property
    def held_ids(self) -> list[str]:
        return list(self._held)

    @property
    def is_waiting(self) -> bool:
        """Is a grammar being compiled for somebody?"""
        return bool(self._held)

    @property
    def is_ready(self) -> bool:
        """Has ``take_ready`` something to give?"""
        return any(self._grammars[request_id].done() for request_id in self._held)

    def wait(self) -> None:
        """For one of those that are being compiled, but not for long."""
        wait([self._grammars[request_id] for request_id in self._held], PATIENCE_SECONDS, FIRST_COMPLETED)

    def take_ready(self) -> Iterator[tuple[EngineRequest, InvalidRequestError | None]]:
        """Requests whose grammars are there, and those that are refused, with the reason."""
        ready = [request_id for request_id in self._held if self._grammars[request_id].done()]
        for request_id in ready:
            request = self._held.pop(request_id)
            try:
                _check(self._grammars[request_id])
            except InvalidRequestError as error:
                self.drop(request_id)
                yield request, error
            else:
                yield request, None

    def take(self, request_id: str) -> EngineRequest | None:
        """One that is held, and is so no longer: it has ended."""
        request = self._held.pop(request_id, None)
        if request is not None:
            self.drop(request_id)
        return request

    def drop(self, request_id: str) -> None:
        """The request has ended."""
        self._grammars.pop(request_id, None)

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()


def _check(grammar: "Future[Any]") -> None:
    """
    Raises:
        InvalidRequestError: it could not be compiled.
    """
    error = grammar.exception()
    if isinstance(error, InvalidRequestError):
        raise InvalidRequestError(f"structured_outputs: {error.message}", "structured_outputs")
    if error is not None:
        raise InvalidRequestError("structured_outputs cannot be compiled", "structured_outputs")
