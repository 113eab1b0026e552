"""How long a step takes, said in the same words to every command that simulates."""

from collections.abc import Callable
from typing import Any

import click

from octavo.sim.cost_text import DEFAULT

cost_model_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--cost-model",
    default=DEFAULT,
    show_default=True,
    help="How long a step takes, a JSON file of it, or what others have measured: splitwise:llama2-70b-h100.",
)
"""The command receives ``cost_model``, for ``octavo.sim.cost_text.parse_costs``."""
