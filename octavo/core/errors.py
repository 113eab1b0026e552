"""Errors that a user can cause, each one clear sentence with the number that matters."""


class OctavoError(Exception):
    """Base of every error that Octavo raises on purpose."""


class InvalidRequestError(OctavoError, ValueError):
    """A request that can never be served as it was sent (HTTP 400).

    ``param`` is the name of the offending field as the client wrote it, if there is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RefusedByEngineError(InvalidRequestError):
    """The engine refused the request, and has counted it."""


class ConfigurationError(OctavoError, ValueError):
    """Settings, files or a model that cannot work (the command ends with a code not 0)."""


class EngineDeadError(OctavoError, RuntimeError):
    """The engine process has ended; its requests are lost and their clients are told (HTTP 503)."""


def shown(value: object) -> str:
    """A value for an error message; a client may send a number whose digits Python refuses to print."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.80}"
