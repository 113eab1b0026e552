"""Prompts for the doctor: as tokens of a model, or as characters."""

from collections.abc import Sequence
from itertools import islice
from os.path import isfile
from pathlib import Path

from octavo.cli.doctor_progress import left_out, watched
from octavo.doctor.finding import Report
from octavo.doctor.prompts import Prompt, is_prompts, read_prompts
from octavo.doctor.spelling import CharacterSpelling, Spelling
from octavo.doctor.texts import TextExamination
from octavo.loading.interface import Tokenizer
from octavo.loading.resolve import resolve_model
from octavo.loading.tokenizer import load_tokenizer
from octavo.sim.traces.lines import TraceFile

TEXT = "text"
"""The format of a file of prompts, beside those of traces."""


class TokenSpelling:
    """Every token is a unit; conversations are put into the chat template of the model, if it has one."""

    unit, run, block = "token", 16, 16

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def units(self, prompt: Prompt) -> Sequence[int]:
        if prompt.messages and self._tokenizer.has_chat_template:
            return self._tokenizer.apply_chat_template(prompt.messages, tools=prompt.tools or None)
        return self._tokenizer.encode(prompt.plain())

    def text(self, units: Sequence[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, units)).decode(errors="replace")


def is_text(trace: str) -> bool:
    """Whether it is a file of prompts, by its first line."""
    path = Path(trace)
    line = next(TraceFile(path).lines(), None) if isfile(path) else None
    return line is not None and is_prompts(line.text)


def examine_text(trace: str, model: str | None, *, lenient: bool, limit: int | None) -> Report:
    """What is wrong with the prompts of a file. ``model``: whose tokens they are; None: characters.

    Raises:
        ConfigurationError: a line has no prompt, or there is no such model.
    """
    spelling: Spelling = CharacterSpelling()
    if model is not None:
        spelling = TokenSpelling(load_tokenizer(resolve_model(model), cache=True))
    file = TraceFile(Path(trace))
    prompts, reader = read_prompts(file, lenient=lenient)
    examination = TextExamination(spelling, lenient=lenient)
    examination.read(watched(islice(prompts, limit), lambda count: count / limit if limit else file.share_read))
    return examination.report(f"{trace} ({TEXT})", left_out(reader.skipped))
