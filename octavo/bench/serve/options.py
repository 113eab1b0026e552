"""Kinds of values that the command line of ``octavo bench serve`` takes."""

from typing import Any

import click

from octavo.bench.serve.workload import LengthRange


class Rates(click.ParamType[tuple[float, ...]]):
    """Requests a second, with commas between; ``inf``: all at once."""

    name = "rates"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            rates = tuple(float(part) for part in value.split(","))
        except ValueError:
            rates = ()
        if not rates or not all(rate > 0 for rate in rates):
            self.fail(f"{value!r} is not one rate above 0 or several with commas between, such as 1,2,4", param, ctx)
        return rates


class Span(click.ParamType[LengthRange]):
    """``128``, or ``64-256`` for anything in between, both ends too."""

    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LengthRange:
        if isinstance(value, LengthRange):
            return value
        least, dash, most = value.partition("-")
        try:
            span = LengthRange(int(least), int(most if dash else least))
        except ValueError:
            span = LengthRange(0, 0)
        if not 1 <= span.least <= span.most:
            self.fail(f"{value!r} is neither a length such as 128 nor a range such as 64-256", param, ctx)
        return span
