"""``octavo generate``: complete one prompt in this process, streaming the text."""

import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from octavo.cli.options import engine_options, model_option, sampling_options
from octavo.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs
    from octavo.llm import LLM

DEFAULT_MAX_TOKENS = 128


def stream_text(
    llm: "LLM", prompt_token_ids: list[int], params: SamplingParams, default_max_tokens: int | None = None
) -> Iterator[str]:
    """The pieces of a completion as they come. ``default_max_tokens``: where ``params`` say nothing; shortened to the
    room there is, which is the default where this is None.

    Raises:
        OctavoError: the request was refused or failed, in one sentence.
    """
    clamp = params.max_tokens is None
    if clamp:
        params = replace(params, max_tokens=default_max_tokens)
    return (delta.text for delta in llm.stream(prompt_token_ids, params, clamp) if delta.text)


def tell_loading(engine_args: "EngineArgs") -> None:
    """One line for whoever waits at a terminal; not part of the output."""
    if sys.stderr.isatty():
        click.echo(f"Loading {engine_args.model} ...", err=True)


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("give a prompt, or - to read it from standard input")
    return sys.stdin.read()


@click.command("generate")
@click.argument("prompt", required=False)
@model_option
@sampling_options
@engine_options
def generate(prompt: str | None, params: SamplingParams, engine_args: "EngineArgs") -> None:
    """Complete PROMPT (raw text, no chat template) and print the text as it is generated.

    Without PROMPT, or with -, it is read from standard input. At most 128 tokens unless --max-tokens says otherwise.
    """
    text = _read_prompt(prompt)
    from octavo.llm import LLM

    tell_loading(engine_args)
    with LLM(**asdict(engine_args)) as llm:
        for piece in stream_text(llm, llm.get_tokenizer().encode(text), params, DEFAULT_MAX_TOKENS):
            click.echo(piece, nl=False)
    click.echo()
