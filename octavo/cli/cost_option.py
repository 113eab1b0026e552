"""How long a step takes, said in the same words to every command that simulates."""

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.core import ParameterSource

from octavo.sim.calibration import read_calibration
from octavo.sim.cost_text import DEFAULT

cost_model_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--cost-model",
    default=DEFAULT,
    show_default=True,
    help="How long a step takes, a JSON file of it, or what others have measured: splitwise:llama2-70b-h100.",
)
"""The command receives ``cost_model``, for ``octavo.sim.cost_text.parse_costs``."""


def with_calibrated_settings(given: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """``given`` with those settings of the server that the costs were measured on which no flag says otherwise; they
    are told on standard error."""
    context, found = click.get_current_context(), read_calibration(given["cost_model"]).settings
    taken = {
        name: found[name]
        for name in names
        if name in found and context.get_parameter_source(name) is ParameterSource.DEFAULT
    }
    if taken:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in taken.items())
        click.echo(f"as the server that was calibrated: {flags}", err=True)
    return given | taken


def warn_of_another_model(cost_model: str, model: str) -> None:
    """Says on standard error that the costs were measured with another model than ``model``."""
    measured = read_calibration(cost_model).model
    if measured not in {None, model}:
        click.echo(f"warning: {cost_model} was measured with {measured}; times of {model} are others", err=True)
