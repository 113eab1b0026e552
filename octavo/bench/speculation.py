"""``octavo bench speculation``: one stream with n-gram drafts and without, on texts that repeat and one that does not.

Each question is answered by an engine that drafts and by one that does not, in turns; their answers have to be the same
bit for bit, which is checked. The speed is that of the answer, from its first token to its last.
"""

import os
import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from octavo.bench.report import report
from octavo.cli.options import engine_options, model_option
from octavo.cli.table import json_option
from octavo.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.engine_args import EngineArgs
    from octavo.llm import LLM

COLUMNS = {
    "question": "question",
    "speculation": "speculation",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "new tokens",
    "steps": "steps",
    "draft_tokens": "drafted",
    "accepted_tokens": "accepted",
    "output_tokens_per_second": "new tokens/s",
    "ratio": "ratio",
}

RABBIT = (
    "There was nothing so very remarkable in that; nor did Alice think it so very much out of the way to hear the "
    "Rabbit say to itself, “Oh dear! Oh dear! I shall be late!” (when she thought it over afterwards, it occurred to "
    "her that she ought to have wondered at this, but at the time it all seemed quite natural); but when the Rabbit "
    "actually took a watch out of its waistcoat-pocket, and looked at it, and then hurried on, Alice started to her "
    "feet, for it flashed across her mind that she had never before seen a rabbit with either a waistcoat-pocket, or a "
    "watch to take out of it, and burning with curiosity, she ran across the field after it, and fortunately was just "
    "in time to see it pop down a large rabbit-hole under the hedge."
)
"""Alice's Adventures in Wonderland (Lewis Carroll, 1865; public domain)."""

STACK = '''class Stack:
    """Items, of which the one that was put on last comes off first."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("the stack is empty")
        return self.items.pop()

    def peek(self):
        if not self.items:
            raise IndexError("the stack is empty")
        return self.items[-1]

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        return iter(reversed(self.items))
'''

QUESTIONS = {
    "prose with small edits": "Repeat the following text word for word, but write Anna instead of Alice.\n\n" + RABBIT,
    "code with small edits": f"Rename the class Stack to Pile and show all of the code.\n\n```python\n{STACK}```",
    "a story": "Write a short story about a lighthouse.",
}
"""The last one asks for nothing that stands in it."""


class Answer(NamedTuple):
    """``seconds``: from the first token to the last."""

    token_ids: list[int]
    seconds: float
    steps: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(slots=True)
class Speaker:
    """An engine, and its answers to the question that is being asked."""

    llm: "LLM"
    answers: list[Answer] = field(default_factory=list)

    def ask(self, prompt: list[int], max_tokens: int) -> None:
        """Greedy, nothing of it in the prefix cache."""
        self.llm.reset_prefix_cache()
        before = self.llm.get_metrics()
        (output,) = self.llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=max_tokens))
        after, (times,) = self.llm.get_metrics(), output.metrics
        assert times.first_token is not None, "it has been answered"
        answer = Answer(
            output.outputs[0].token_ids,
            times.finished - times.first_token,
            after.num_steps - before.num_steps,
            after.num_draft_tokens - before.num_draft_tokens,
            after.num_accepted_tokens - before.num_accepted_tokens,
        )
        self.answers.append(answer)


def as_prompt(llm: "LLM", question: str) -> list[int]:
    """Through the model's chat template, if it has one."""
    tokenizer = llm.get_tokenizer()
    if not tokenizer.has_chat_template:
        return tokenizer.encode(question)
    return tokenizer.apply_chat_template([{"role": "user", "content": question}])


def rows_of(question: str, prompt: list[int], speakers: dict[str, Speaker]) -> list[dict[str, object]]:
    """One of each engine. ``ratio``: its speed over that of the first, the median of the repeats' own ratios."""
    rows: list[dict[str, object]] = []
    plain = next(iter(speakers.values())).answers
    for name, speaker in speakers.items():
        assert all(answer.token_ids == plain[0].token_ids for answer in speaker.answers), "drafts change no answer"
        answer = speaker.answers[-1]
        seconds = [each.seconds for each in speaker.answers]
        ratios = [other.seconds / own for other, own in zip(plain, seconds, strict=True)]
        rows.append(
            {
                "question": question,
                "speculation": name,
                "prompt_tokens": len(prompt),
                "output_tokens": len(answer.token_ids),
                "steps": answer.steps,
                "draft_tokens": answer.draft_tokens,
                "accepted_tokens": answer.accepted_tokens,
                "output_tokens_per_second": (len(answer.token_ids) - 1) / statistics.median(seconds),
                "ratio": statistics.median(ratios),
                "seconds_of_repeats": seconds,
            }
        )
    return rows


@click.command("speculation")
@model_option
@click.option("--max-tokens", type=click.IntRange(2), default=400, show_default=True, help="Most tokens of an answer.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Medians are shown.")
@json_option
@engine_options
def speculation(engine_args: "EngineArgs", max_tokens: int, repeats: int, json_path: Path | None) -> None:
    """Compare one stream with drafts and without, where the answer repeats the question and where it does not.

    Answers are greedy, to their natural end. The ratio is the speed over that without drafts; steps and drafts are
    those of the last repeat.
    """
    from octavo.llm import LLM

    engine_args = replace(engine_args, threads=engine_args.threads or len(os.sched_getaffinity(0)))
    speakers = {name: Speaker(LLM(**asdict(replace(engine_args, speculation=name)))) for name in ("off", "ngram")}
    rows: list[dict[str, object]] = []
    for question, text in QUESTIONS.items():
        prompt = as_prompt(speakers["off"].llm, text)
        for number in range(repeats + 1):
            for speaker in speakers.values():
                speaker.ask(prompt, max_tokens)
                if number == 0:  # a warm-up
                    speaker.answers.clear()
        rows += rows_of(question, prompt, speakers)
        for speaker in speakers.values():
            speaker.answers.clear()
    report("speculation", rows, COLUMNS, json_path)
