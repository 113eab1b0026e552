"""What prompts as text say is wrong, held to prompts of which the answer is known."""

import datetime as dt
import uuid
from array import array
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.doctor.alignment import Aligner, common_prefix
from octavo.doctor.finding import Finding, Report, Severity
from octavo.doctor.kinds import TEXT, Difference, kind_of
from octavo.doctor.prompts import Prompt
from octavo.doctor.sample import STRETCH, Stretches
from octavo.doctor.spelling import CharacterSpelling, Spelled, Spelling, spelled
from octavo.doctor.texts import TextExamination

NOON = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)


class WordSpelling:
    """Every word is a unit, with the space after it."""

    unit, run, block = "token", 16, 16

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def units(self, prompt: Prompt) -> Sequence[int]:
        return [self._ids.setdefault(word, len(self._ids)) for word in prompt.plain().split(" ")]

    def text(self, units: Sequence[int]) -> str:
        words = list(self._ids)
        return "".join(words[unit] + " " for unit in units)


def some_words(count: int, seed: int) -> str:
    rng = Random(seed)
    return " ".join("".join(rng.choices("abcdefghijklmnop", k=6)) for _ in range(count))


def examined(texts: Sequence[str], spelling: Spelling | None = None) -> Report:
    examination = TextExamination(spelling or WordSpelling())
    examination.read(Prompt(line, len(text), text) for line, text in enumerate(texts, 1))
    return examination.report("prompts")


def only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


SEVEN, REST = some_words(7, 1), some_words(993, 2)


def test_a_time_at_token_7_of_1000_that_are_shared() -> None:
    texts = [
        f"{SEVEN} {NOON + dt.timedelta(seconds=each):%Y-%m-%dT%H:%M:%S} {REST} {some_words(20, 100 + each)}"
        for each in range(50)
    ]
    report = examined(texts)
    finding = only(report)
    assert (finding.name, finding.severity) == ("differing-field", Severity.SEVERE)
    assert finding.figures["kind"] == "a date with a time"
    assert finding.figures["start"] == 7
    assert finding.figures["num_prompts"] == 50
    assert finding.figures["lost_each"] == 993
    assert finding.figures["lost"] == 50 * 993
    assert finding.figures["lost_share"] == pytest.approx(993 / 1021)
    assert finding.what.startswith("A date with a time that differs at token 7 (line 1, character 50: after ")
    assert '"2026-11-30T12:00:00" or "2026-11-30T12:00:01"' in finding.what
    assert "993 tokens a request, 49,650 in all, 97% of all prompts' tokens" in finding.what
    assert finding.change.startswith("Put a date with a time behind the 993 tokens that are the same")
    assert report.is_severe


def test_the_same_by_characters() -> None:
    texts = [f"You help.\nIt is {NOON + dt.timedelta(minutes=7 * each):%H:%M}.\n{REST}" for each in range(50)]
    finding = only(examined(texts, CharacterSpelling()))
    assert finding.figures["kind"] == "a time"
    assert finding.figures["line"] == 2
    assert finding.figures["column"] == len("It is 1") + 1, "all begin with 12 to 17 o'clock"
    assert finding.figures["lost_each"] == pytest.approx(len(REST) + 2, abs=2)
    assert '(line 2, character 8: after "You help.\\nIt is ": "12:00" or "12:07")' in finding.what


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("a UUID", lambda rng: str(uuid.UUID(int=rng.getrandbits(128)))),
        ("a number", lambda rng: str(rng.randrange(10**6))),
        ("an id", lambda rng: f"user-{rng.getrandbits(60):015x}"),
        ("an e-mail address", lambda rng: f"u{rng.randrange(10**6)}@example.org"),
        ("a date", lambda rng: f"{rng.randint(1, 28)} November {rng.randint(1900, 2030)}"),
        ("a name", lambda rng: "".join(rng.choices("abcdefgh", k=6)).capitalize() + " Smith"),
    ],
)
def test_kinds_of_what_differs(kind: str, make: Callable[[Random], str]) -> None:
    rng = Random(3)
    texts = [f"You help the user {make(rng)} with this:\n{REST}\n{some_words(9, each)}" for each in range(40)]
    finding = only(examined(texts, CharacterSpelling()))
    assert finding.figures["kind"] == kind
    assert finding.name == "differing-field"
    assert finding.figures["line"] == 1
    assert 18 <= finding.figures["start"] <= 30  # type: ignore[operator]


def test_system_prompts_whose_first_lines_differ() -> None:
    texts = [f"{some_words(40, each)}\n{REST}\n{some_words(20, 50 + each)}" for each in range(30)]
    finding = only(examined(texts))
    assert (finding.name, finding.severity) == ("differing-first-lines", Severity.SEVERE)
    assert finding.figures["start"] == 0
    assert finding.figures["lost_each"] == pytest.approx(991)
    assert finding.change.startswith("Put the 991 tokens that are the same before what differs")
    shown = finding.what.split('"')
    assert len(shown[1]) == len(shown[3]) == 40, "no more of a text than this"


def test_what_changes_slowly_loses_nothing_but_once() -> None:
    """A date: the prompts of a day share all that follows it."""
    texts = [f"{SEVEN} {NOON + dt.timedelta(days=each // 100):%Y-%m-%d} {REST} {each}" for each in range(300)]
    assert examined(texts).findings == ()


def test_prompts_that_share_all_they_can() -> None:
    report = examined([f"{SEVEN} {REST} {some_words(50, each)}" for each in range(40)])
    assert report.findings == ()
    assert "In blocks of 16 tokens 92% of the prompts' tokens were in an earlier one" in report.looked_at[1]


def test_prompts_that_have_nothing_in_common() -> None:
    assert examined([some_words(500, each) for each in range(40)]).findings == ()


def test_groups_are_told_apart() -> None:
    """Two templates, a time in the one and a number in the other."""
    texts = []
    for each in range(40):
        texts.append(f"{SEVEN} {NOON + dt.timedelta(seconds=each):%H:%M:%S} {REST}")
        texts.append(f"{some_words(30, 8)} {7919 * each} {some_words(400, 9)}")
    found = {finding.figures["kind"]: finding.figures for finding in examined(texts).findings}
    assert found["a time"]["lost"] == 40 * 993
    assert found["a number"]["start"] == 30
    assert found["a number"]["lost"] == 40 * 400


def test_templates_that_have_phrases_in_common_are_told_apart() -> None:
    texts = []
    for each in range(120):
        rules = "\n".join(
            f"Rule {each % 3}-{rule}: answer question {rule} of the list in a sentence." for rule in range(30)
        )
        texts.append(f"Time {NOON + dt.timedelta(seconds=each):%H:%M:%S}\n{rules}\nWhat about {each}?")
    finding = only(examined(texts, CharacterSpelling()))
    assert (finding.figures["kind"], finding.figures["num_prompts"]) == ("a time", 120)
    assert "keeps 120 prompts of 3 kinds from sharing what follows:" in finding.what
    assert "more such places" not in finding.what


def test_a_short_template_before_long_texts_is_found() -> None:
    texts = [f"{SEVEN} {7919 * each} {some_words(300, 4)} {some_words(1500, 300 + each)}" for each in range(30)]
    assert only(examined(texts)).figures["lost_each"] == 300


def test_a_time_in_two_places() -> None:
    texts = []
    for each in range(30):
        now = f"{NOON + dt.timedelta(seconds=each):%H:%M:%S}"
        texts.append(f"{SEVEN} {now} {some_words(300, 5)} {now} {some_words(200, 6)} {some_words(5, 200 + each)}")
    finding = only(examined(texts))
    assert finding.figures["lost_each"] == 500
    assert "(and 1 more such places)" in finding.what


def test_totals_of_a_sample_stand_for_all() -> None:
    examination = TextExamination(WordSpelling(), sample=Stretches(num_stretches=2))
    count = 10 * STRETCH
    texts = (f"{SEVEN} {7919 * each} {REST}" for each in range(count))
    examination.read(Prompt(line, len(text), text) for line, text in enumerate(texts, 1))
    report = examination.report("prompts")
    assert only(report).figures["num_prompts"] == count
    assert only(report).figures["lost"] == count * 993
    assert "Compared were 128 of them, in stretches" in report.looked_at[1]


def test_what_a_terminal_would_act_on_is_not_shown() -> None:
    texts = [f"\x1b[31m{some_words(1, each)}\ud800 {some_words(3, each)}\n{REST}" for each in range(30)]
    finding = only(examined(texts, CharacterSpelling()))
    assert finding.what.isprintable()
    assert "\\x1b[31m" in finding.what


def test_prompts_that_are_one_letter_over_and_over() -> None:
    """What is the same everywhere is looked up, not searched through."""
    texts = [f"{each:04}" + "x" * 16_000 for each in range(40)]
    report = examined(texts, CharacterSpelling())
    assert "40 prompts of 640,160 characters" in report.looked_at[0]


@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(1, 3000))
def test_stretches_hold_what_came_in_a_row(seed: int, num_stretches: int, count: int) -> None:
    sample = Stretches[int](num_stretches, seed)
    for each in range(count):
        sample.add(each)
    kept = list(sample)
    assert len(kept) == len(sample) == len(set(kept)) <= num_stretches * STRETCH
    assert sample.count == count
    assert {each // STRETCH for each in kept if each + 1 < count and each % STRETCH < STRETCH - 1} == {
        each // STRETCH for each in kept if each + 1 in set(kept) and each % STRETCH < STRETCH - 1
    }
    if count <= num_stretches * STRETCH:
        assert kept == list(range(count))


def of_units(units: Sequence[int]) -> Spelled:
    return Spelled(array("I", units).tobytes(), len(units))


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefixes(one: list[int], other: list[int]) -> None:
    length = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    expected = min(len(one), len(other)) if length is None else length
    assert common_prefix(of_units(one).data, of_units(other).data) == expected


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=60))
def test_runs_are_the_same_in_both_and_in_order(one: list[int], other: list[int]) -> None:
    at = start = 0
    for number, run in enumerate(Aligner(of_units(one), 3).runs(of_units(other))):
        assert one[run.at : run.at + run.length] == other[run.start : run.end]
        assert run.at >= at
        assert run.start >= start
        assert number == 0 or run.length >= 3
        at, start = run.at + run.length, run.end
        assert one[at : at + 1] != other[start : start + 1] or not one[at:] or not other[start:]


def test_units_and_text_and_back() -> None:
    text = "Zoë\n\U0001f600 \ud83d"
    prompt = spelled(Prompt(1, 6, text), CharacterSpelling())
    assert CharacterSpelling().text(prompt.units(0, len(prompt))) == text
    assert CharacterSpelling().text(prompt.units(-5, 3)) == "Zoë"


@pytest.mark.parametrize(
    ("piece", "kind"),
    [
        ("30 November 2026 at 12:30", "a date with a time"),
        ("Monday", "a date"),
        ("9:05 pm", "a time"),
        ("-1.5", "a number"),
    ],
)
def test_further_spellings(piece: str, kind: str) -> None:
    assert kind_of([Difference("it is ", piece, " now")]) == (kind, [piece])
    assert kind_of([Difference("it is ", piece, " now"), *[Difference("", "what else", "")] * 2])[0] == TEXT
