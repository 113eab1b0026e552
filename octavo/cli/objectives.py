"""Service-level objectives on a command line."""

from collections.abc import Collection
from typing import Any

import click


class Objectives(click.ParamType[dict[str, float]]):
    """``ttft:500``, or several with spaces between, as vLLM takes them."""

    name = "name:milliseconds"

    def __init__(self, known: Collection[str]) -> None:
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        if isinstance(value, dict):
            return value
        slos: dict[str, float] = {}
        for part in value.split():
            name, _, milliseconds = part.partition(":")
            try:
                slos[name] = float(milliseconds)
            except ValueError:
                self.fail(f"{part!r} is not of the form ttft:500", param, ctx)
            if name not in self._known:
                self.fail(f"{name!r} is none of {', '.join(self._known)}", param, ctx)
        return slos
