"""The flags that decide what is answered to a request, whoever brings it: HTTP or a file."""

from typing import get_args

import click

from octavo.cli.options import all_of, setting
from octavo.core.step import Pooling
from octavo.server.dialect import NO_PARSER, TOOL_PARSERS
from octavo.server.reasoning import REASONING_PARSERS

answer_options = all_of(
    setting("--served-model-name", help="Name of the model in the API.  [default: MODEL as given]"),
    setting(
        "--restart-engine",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="How many times in ten minutes an engine that has ended is started again; 0: all ends with it.",
    ),
    setting(
        "--enable-auto-tool-choice/--no-enable-auto-tool-choice",
        default=True,
        help="Whether the model may decide by itself to call a tool.  [default: yes]",
    ),
    setting(
        "--tool-call-parser",
        type=click.Choice(sorted(TOOL_PARSERS)),
        help="How the model writes tool calls.  [default: as its chat template shows, where that is plain]",
    ),
    setting(
        "--reasoning-parser",
        type=click.Choice([*sorted(REASONING_PARSERS), NO_PARSER]),
        help="How the model marks its thinking, which is then told apart.  [default: as its chat template shows]",
    ),
    setting(
        "--pooling",
        type=click.Choice(get_args(Pooling)),
        default="mean",
        show_default=True,
        help="Embeddings are made of the hidden states of all tokens, or of the last one.",
    ),
)
