"""Prompts as rows of units, tokens or characters, and back."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from octavo.doctor.prompts import MAX_CHARACTERS, Prompt

UNIT_BYTES = 4


class Spelling(Protocol):
    """``unit``: what one is called. ``run``: so many of them in a row are no chance. ``block``: so many stand for a
    block of the cache."""

    @property
    def unit(self) -> str: ...

    @property
    def run(self) -> int: ...

    @property
    def block(self) -> int: ...

    def units(self, prompt: Prompt) -> Sequence[int]:
        """
        Raises:
            InvalidRequestError: it cannot be spelled.
        """
        ...

    def text(self, units: Sequence[int]) -> str: ...


class CharacterSpelling:
    """Every character is a unit."""

    unit, run, block = "character", 48, 64

    def units(self, prompt: Prompt) -> Sequence[int]:
        return array("I", prompt.plain().encode("utf-32-le", "surrogatepass"))

    def text(self, units: Sequence[int]) -> str:
        return "".join(map(chr, units))


class Spelled(NamedTuple):
    """A prompt of ``length`` characters as units of ``UNIT_BYTES`` bytes."""

    data: bytes
    length: int

    def __len__(self) -> int:
        return len(self.data) // UNIT_BYTES

    def units(self, start: int, end: int) -> Sequence[int]:
        return array("I", self.data[UNIT_BYTES * max(0, start) : UNIT_BYTES * max(0, end)])


def spelled(prompt: Prompt, spelling: Spelling) -> Spelled:
    return Spelled(array("I", spelling.units(prompt)[:MAX_CHARACTERS]).tobytes(), prompt.length)
