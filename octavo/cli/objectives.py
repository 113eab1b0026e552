"""Service-level objectives on a command line, and what figures beside them are called in tables."""

from collections.abc import Collection
from math import inf
from typing import Any

import click

LATENCY_TITLES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2el": "end to end"}

RATE_LINES = {
    "prompt_tokens": "prompt tokens",
    "output_tokens": "new tokens",
    "requests_per_second": "requests/s",
    "output_tokens_per_second": "new tokens/s",
    "total_tokens_per_second": "all tokens/s",
    "goodput": "goodput, requests/s",
    "goodput_share": "goodput, share",
}
"""Key of a figure -> its line in a table, measured or simulated."""


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
            if not 0 <= slos[name] < inf:
                self.fail(f"{part!r} is no time of 0 milliseconds or more", param, ctx)
            if name not in self._known:
                self.fail(f"{name!r} is none of {', '.join(self._known)}", param, ctx)
        return slos
