"""Numbers as people write them on a command line: 4k tokens, 2GiB of memory."""

import re
from math import isfinite
from typing import Any

import click

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


class TokenCount(click.ParamType[int | None]):
    """A number of tokens: 4096, 4k (4000), 4K (4096), as vLLM reads them; ``auto`` is None."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if isinstance(value, int):
            return value
        if value.strip().lower() == "auto":
            return None
        count = scale(value, _DECIMAL | _BINARY)
        if count is None or count < 1:
            self.fail(f"{value!r} is not a number of tokens such as 4096, 4k or 4K", param, ctx)
        return count


class ByteSize(click.ParamType[int]):
    """A size in bytes: 2GiB or 2G (binary), 2GB or 2g (decimal), or a plain number."""

    name = "size"
    _UNITS = (
        {"B": 1}
        | _DECIMAL
        | _BINARY
        | {f"{unit}iB": factor for unit, factor in _BINARY.items()}
        | {f"{unit.upper()}B": factor for unit, factor in _DECIMAL.items()}
    )

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        size = scale(value, self._UNITS)
        if size is None or size < 1:
            self.fail(f"{value!r} is not a size such as 2GiB, 500M or 1073741824", param, ctx)
        return size


class Number(click.FloatRange):
    """A number within bounds, and not NaN, of which every comparison is false, nor without end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


def scale(text: str, units: dict[str, int]) -> int | None:
    """The whole number that ``text`` means, rounded down; None if it is no number followed by one of ``units``."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match[2] and match[2] not in units):
        return None
    factor = units[match[2]] if match[2] else 1
    return int(match[1]) * factor if match[1].isdigit() else int(float(match[1]) * factor)


def readable_bytes(size: float) -> str:
    """``size`` with the binary unit that leaves one to four digits before the point: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
