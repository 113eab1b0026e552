"""Prompts as text, examined: what they would share, and what early in them keeps them from it."""

from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from octavo.core.errors import ConfigurationError, InvalidRequestError
from octavo.doctor.divergence import Divergence, divergences
from octavo.doctor.finding import Finding, Report, Severity, graded, sorted_findings
from octavo.doctor.kinds import TEXT
from octavo.doctor.prompts import Prompt
from octavo.doctor.sample import Stretches
from octavo.doctor.sharing import Sharing
from octavo.doctor.spelling import UNIT_BYTES, Spelled, Spelling, spelled
from octavo.doctor.words import number, one_line, share
from octavo.sim.traces.request import TracedRequest

LEAST, LOST_WARNING, LOST_SEVERE = 0.005, 0.05, 0.2
"""Shares of all prompts' units that are lost by one difference; below the first it is not worth a word."""

MAX_FINDINGS = 8
BEFORE, FIELD = 24, 40
"""Characters that are shown of a text before a difference, and of what differs."""


class TextExamination:
    """Reads all prompts, and keeps a sample of them. ``lenient``: those that the spelling refuses are left out."""

    def __init__(self, spelling: Spelling, *, lenient: bool = False, sample: Stretches[Prompt] | None = None) -> None:
        self._spelling = spelling
        self._lenient = lenient
        self._num_refused = 0
        self._sample = Stretches[Prompt]() if sample is None else sample
        self._num_characters = 0

    def read(self, prompts: Iterable[Prompt]) -> None:
        for prompt in prompts:
            self._num_characters += prompt.length
            self._sample.add(prompt)

    def report(self, source: str, notes: Sequence[str] = ()) -> Report:
        """``notes``: of whoever read it, such as lines that were left out.

        Raises:
            ConfigurationError: the spelling refuses a prompt; names the line. Or there are none.
        """
        texts = list(self._spelled())
        if not texts:
            raise ConfigurationError(" ".join((f"there are no prompts in {source}.", *notes)))
        scale = self._sample.count / len(texts)
        found = divergences(texts, self._spelling)[:MAX_FINDINGS]
        findings = [_finding(each, texts, scale, self._spelling.unit) for each in found]
        refused = [f"Left out: {self._num_refused} prompts that cannot be tokenised."] if self._num_refused else []
        looked_at = (*self._looked_at(texts), *notes, *refused)
        return Report(source, sorted_findings(*findings), looked_at, tuple(self._unseen()))

    def _spelled(self) -> Iterator[Spelled]:
        for prompt in self._sample:
            try:
                yield spelled(prompt, self._spelling)
            except InvalidRequestError as error:
                if not self._lenient:
                    raise ConfigurationError(
                        f"line {prompt.line}: {error}; --lenient leaves out such prompts and counts them"
                    ) from error
                self._num_refused += 1

    def _looked_at(self, texts: Sequence[Spelled]) -> Iterator[str]:
        unit, total = self._spelling.unit, _num_units(texts)
        yield (
            f"{number(self._sample.count)} prompts of {number(self._num_characters)} characters, "
            f"{number(total / len(texts))} {unit}s each on average, as far as they were read."
        )
        if len(self._sample) < self._sample.count:
            yield (
                f"Compared were {number(len(texts))} of them, in stretches of requests that follow each other; totals "
                "stand for all."
            )
            return
        sharing = _sharing(texts, self._spelling.block)
        if sharing.num_requests:
            yield (
                f"In blocks of {self._spelling.block} {unit}s {share(sharing.reusable_share)} of the prompts' {unit}s "
                "were in an earlier one, with an unlimited prefix cache."
            )

    def _unseen(self) -> Iterator[str]:
        if self._spelling.unit != "token":
            yield "Prompts were compared by characters, about four to a token; --tokenizer MODEL counts tokens."
        yield "Answers are not in this file: block sizes and long tails are seen in a log (octavo serve --record FILE)."
        yield "What the server did (pins, queue, preemptions, refusals) is seen at the server: octavo doctor URL."


def _num_units(texts: Iterable[Spelled]) -> int:
    return sum(map(len, texts))


def _sharing(texts: Iterable[Spelled], block: int) -> Sharing:
    sharing, width = Sharing(), UNIT_BYTES * block
    for when, text in enumerate(texts):
        names = [crc32(text.data[at : at + width]) for at in range(0, len(text.data), width)]
        if names:
            sharing.add(TracedRequest(float(when), len(text), 1, blocks=names, block_size=block))
    return sharing


def _finding(found: Divergence, texts: Sequence[Spelled], scale: float, unit: str) -> Finding | None:
    part = found.lost / max(1, _num_units(texts))
    if part < LEAST:
        return None
    each, total = found.lost / found.num_prompts, found.lost * scale
    groups = f" of {number(found.num_groups)} kinds" if found.num_groups > 1 else ""
    is_field = found.kind != TEXT
    what = f"{found.kind.capitalize()} that differs" if is_field else "Text that differs"
    before, shown = _shown(found)
    return Finding(
        "differing-field" if is_field else "differing-first-lines",
        graded(part, LOST_WARNING, LOST_SEVERE) or Severity.NOTE,
        f"{what} at {unit} {number(found.start)} (line {number(found.line)}, character {number(found.column)}: "
        f"{before}{shown}) keeps {number(round(found.num_prompts * scale))} prompts{groups} from sharing what "
        f"follows{_places(found)}: {number(each)} {unit}s a request, {number(total)} in all, {share(part)} of all "
        f"prompts' {unit}s, are the same in another prompt and are computed again.",
        _change(found, unit),
        f"{number(each)} {unit}s fewer to compute for each of these requests, {share(part)} of all.",
        {
            "start": found.start,
            "line": found.line,
            "column": found.column,
            "kind": found.kind,
            "num_prompts": round(found.num_prompts * scale),
            "lost_each": each,
            "lost": total,
            "lost_share": part,
            "common": found.num_common,
        },
    )


def _shown(found: Divergence) -> tuple[str, str]:
    """The few characters before the difference, and two of what differs."""
    fields = list(dict.fromkeys(one_line(each)[:FIELD] for each in found.fields))[:2]
    before = found.before
    if fields and found.kind != TEXT:  # what differs may begin the same in all
        head = next((size for size in range(len(fields[0]), 0, -1) if before.endswith(found.fields[0][:size])), 0)
        before = before[: len(before) - head]
    cut = one_line(before)[-BEFORE:]
    return f'after "{cut}": ' if cut.strip() else "", " or ".join(f'"{each}"' for each in fields)


def _places(found: Divergence) -> str:
    return f" (and {number(found.num_places - 1)} more such places)" if found.num_places > 1 else ""


def _change(found: Divergence, unit: str) -> str:
    rest = number(round(found.num_common - found.start))
    if found.kind == TEXT:
        return (
            f"Put the {rest} {unit}s that are the same before what differs, or make the first lines the same and say "
            "what differs after them."
        )
    coarser = ", or give the date alone" if "time" in found.kind else ""
    return f"Put {found.kind} behind the {rest} {unit}s that are the same, into the last message{coarser}."
