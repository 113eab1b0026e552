"""Which back end runs: the native one where it was built, else the reference, said once."""

import logging
import os
from collections.abc import Callable

from octavo.core.errors import ConfigurationError
from octavo.kernels.cpu import CpuOps, NativeLibraryMissingError
from octavo.kernels.interface import Ops
from octavo.kernels.reference import ReferenceOps

logger = logging.getLogger(__name__)

_BACKENDS: dict[str, Callable[[], Ops]] = {"cpu": CpuOps, "reference": ReferenceOps}


def select_ops(name: str | None = None) -> Ops:
    """The back end called ``name``, else the one that OCTAVO_BACKEND names, else the fastest one that was built.

    Raises:
        ConfigurationError: no back end has that name, or the one asked for was not built.
    """
    chosen = name or os.environ.get("OCTAVO_BACKEND")
    if chosen:
        if chosen not in _BACKENDS:
            raise ConfigurationError(f"There is no kernel back end {chosen!r}; choose one of: {', '.join(_BACKENDS)}.")
        return _BACKENDS[chosen]()
    try:
        return CpuOps()
    except NativeLibraryMissingError as error:
        _warn_once(str(error))
        return ReferenceOps()


_warned: set[str] = set()


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        logger.warning("%s Until then everything runs on the slow reference kernels.", message)
