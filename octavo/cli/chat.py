"""``octavo chat``: a conversation in the terminal, in this process, streaming the answers."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING

import click

from octavo.cli.generate import stream_text, tell_loading
from octavo.cli.options import engine_options, model_option, sampling_options
from octavo.core.errors import OctavoError
from octavo.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs
    from octavo.llm import LLM

HELP = "Ctrl-C stops an answer; Ctrl-D or /quit ends; /reset forgets the conversation."


class Conversation:
    """The messages so far, and answers to new ones."""

    def __init__(self, llm: "LLM", params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._start = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = list(self._start)

    def reset(self) -> None:
        self.messages = list(self._start)

    def answer(self, text: str, stopped: Callable[[], bool]) -> Iterator[str]:
        """The pieces of the answer to ``text``. Both messages are kept once it ends or ``stopped`` turns true;
        an answer that fails leaves the conversation as it was.

        Raises:
            OctavoError: the conversation no longer fits, or the engine failed.
        """
        question = {"role": "user", "content": text}
        token_ids = self._llm.get_tokenizer().apply_chat_template([*self.messages, question])
        pieces = []
        for piece in stream_text(self._llm, token_ids, self._params):
            pieces.append(piece)
            yield piece
            if stopped():
                break
        self.messages += [question, {"role": "assistant", "content": "".join(pieces)}]


@contextmanager
def interrupt_noted() -> Iterator[Callable[[], bool]]:
    """Turns Ctrl-C into a flag that the returned function reads, so that it never strikes in the middle of a step."""
    hits: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        hits.append(number)

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(hits)
    finally:
        signal.signal(signal.SIGINT, previous)


def _print_answer(conversation: Conversation, text: str) -> None:
    with interrupt_noted() as stopped:
        try:
            for piece in conversation.answer(text, stopped):
                click.echo(piece, nl=False)
        except OctavoError as error:
            click.secho(f"{error} (/reset starts anew)", fg="red", err=True)
    click.echo()


def _talk(conversation: Conversation) -> None:
    """Reads lines until /quit or the end of input."""
    while True:
        try:
            line = input("> ").strip()
        except KeyboardInterrupt:
            click.echo(f"\n{HELP}")
            continue
        except EOFError:
            click.echo()
            return
        if line == "/quit":
            return
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            click.echo(HELP)
        elif line:
            _print_answer(conversation, line)


@click.command("chat")
@model_option
@click.option("--system", help="A system message that opens the conversation.")
@sampling_options
@engine_options
def chat(system: str | None, params: SamplingParams, engine_args: "EngineArgs") -> None:
    """Talk to a model. Ctrl-C stops an answer; Ctrl-D or /quit ends; /reset forgets the conversation."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and history, where Python was built with it
    from octavo.llm import LLM

    tell_loading(engine_args)
    with LLM(**asdict(engine_args)) as llm:
        if not llm.get_tokenizer().has_chat_template:
            raise OctavoError(
                f"{engine_args.model} has no chat template: use `octavo generate`, or a model made for chat"
            )
        click.echo(HELP)
        _talk(Conversation(llm, params, system))
