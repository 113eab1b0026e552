"""The seam by which a measurement sees what a step spends where.

What is worth telling apart is handed, with the name of its part, to a ``Timed`` when an engine is put together; the
engine calls what it gets back. By default that is the very same function: nothing is measured and nothing costs.
"""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Timed(Protocol):
    def __call__(self, part: str, function: Callable[P, R], /) -> Callable[P, R]:
        """``function``, whose time counts as spent in ``part``."""
        ...


def untimed(_part: str, function: Callable[P, R], /) -> Callable[P, R]:
    """The ``Timed`` of an engine that nobody measures."""
    return function
