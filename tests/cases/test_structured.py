"""Structured output on RAND: it always parses, B41, B52, and every mechanism on against off, bit for bit."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.core.structured import Thinking, form_or_calls, json_schema
from octavo.engine.messages import EngineStats, OutputDelta
from octavo.server.dialect import TOOL_PARSERS
from octavo.server.tools.callee import Callee
from tests.support.driving import Answer, Driver, Job, all_bits, at_steps, run_apart
from tests.support.models import RAND_VOCAB, rand_model
from tests.support.parity import random_ids

LARGE = {"block_size": 4, "num_blocks": 600, "max_num_seqs": 64, "max_model_len": 256}
SMALL = {**LARGE, "num_blocks": 60, "max_model_len": 200}

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "grün", "東京"]}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ROWS = {"type": "array", "items": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}}
KINDS: list[dict[str, Any] | None] = [
    {"json": PERSON},
    {"regex": "(ab|cd){4,9}!"},
    None,
    {"choice": ["yes", "no", "München", "a long text that repeats, a long text that repeats"]},
    {"json": ROWS | {"minItems": 3}},
    {"grammar": 'root ::= "(" root ")" | "x" | root "+" root'},
    None,
    {"regex": "[a-z ]{1,30}"},
]


def mixed_jobs() -> list[Job]:
    """24 requests, three of four constrained, in every way of drawing."""
    draws: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 5, "n": 4},
        {"temperature": 0.8, "seed": 6, "top_p": 0.9, "repetition_penalty": 1.2, "logit_bias": {40: 3.0}},
        {"temperature": 1.0, "seed": 7, "min_tokens": 9, "bad_words": ["x"]},
        {"temperature": 0.0, "ignore_eos": True, "presence_penalty": 0.4},
    ]
    jobs = []
    for index in range(24):
        params = SamplingParams(
            max_tokens=30 + index, logprobs=2, structured_outputs=KINDS[index % len(KINDS)], **draws[index % len(draws)]
        )
        jobs.append(Job(random_ids(3 + 4 * index, RAND_VOCAB - 8, seed=index), params))
    return jobs + thinking_jobs() + calling_jobs()


def thinking_jobs() -> list[Job]:
    """Eight more, whose answers may or do begin with thinking, which ends soon: at an "e"."""
    draws: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 8, "n": 3}]
    jobs = []
    for index in range(8):
        params = SamplingParams(
            max_tokens=60,
            structured_outputs={"json": ROWS} if index < 4 else {"regex": "(xy|z){2,9}"},
            thinking=Thinking("a", "e", is_open=index % 4 < 2),
            logit_bias={ord("a"): 2.0, ord("e"): 1.0},
            **draws[index % 2],
        )
        jobs.append(Job(random_ids(20 + index, RAND_VOCAB - 8, seed=90 + index), params))
    return jobs


def calling_jobs() -> list[Job]:
    """Four more, which may be calls or of a form."""
    dialect = TOOL_PARSERS["hermes"]
    parameters = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "additionalProperties": False}
    rules = dialect.rules([Callee("f", parameters, is_strict=True)], False)
    asked = form_or_calls(json_schema(ROWS, ""), rules, dialect.markers, "")
    draws: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 9, "n": 2}]
    jobs = []
    for index in range(4):
        likely = {ord("<"): 4.0} if index < 2 else {}
        params = SamplingParams(max_tokens=90, structured_outputs=asked, logit_bias=likely or None, **draws[index % 2])
        jobs.append(Job(random_ids(9 + index, RAND_VOCAB - 8, seed=70 + index), params))
    return jobs


JOBS = mixed_jobs()


@pytest.fixture(scope="module")
def alone(rand: Path) -> list[list[Answer]]:
    return run_apart(Driver(rand, enable_prefix_caching=False, **LARGE), JOBS)


@pytest.fixture(scope="module")
def expected(alone: list[list[Answer]]) -> list[list[Any]]:
    return all_bits(alone)


def test_all_of_it_parses_unless_it_was_cut(alone: list[list[Answer]]) -> None:
    num_checked = 0
    for job, answers in zip(JOBS, alone, strict=True):
        asked = job.params.constraint
        for answer in answers:
            if asked is None or answer.finish_reason == "length" or job.params.thinking is not None:
                continue
            assert answer.finish_reason == "stop"
            num_checked += 1
            if asked.kind == "json_schema":
                json.loads(answer.text)
            if asked.kind == "choice":
                assert answer.text in json.loads(asked.text)
            assert "\N{REPLACEMENT CHARACTER}" not in answer.text
    assert num_checked >= 15


def test_after_the_thinking_comes_the_form(alone: list[list[Answer]]) -> None:
    num_thought = num_answers = 0
    for job, answers in zip(JOBS, alone, strict=True):
        thinking, asked = job.params.thinking, job.params.constraint
        for answer in answers if thinking is not None and asked is not None else ():
            assert thinking is not None
            thinks = thinking.is_open or answer.text.startswith("a")
            thought, mark, text = answer.text.partition("e") if thinks else ("", "", answer.text)
            num_thought += bool(thought and mark)
            if answer.finish_reason == "stop":
                num_answers += 1
                assert isinstance(json.loads(text), list) if text.startswith("[") else re.fullmatch("(xy|z){2,9}", text)
    assert num_thought > 3
    assert num_answers > 3


def test_a_text_is_calls_or_of_the_form(alone: list[list[Answer]]) -> None:
    kinds = Counter[bool]()
    for job, answers in zip(JOBS, alone, strict=True):
        if job.params.constraint is None or job.params.constraint.kind != "form_or_calls":
            continue
        for answer in (each for each in answers if each.finish_reason == "stop"):
            calls = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", answer.text, re.DOTALL)
            kinds[bool(calls)] += 1
            read = [json.loads(call) for call in calls] or json.loads(answer.text)
            assert all(call["name"] == "f" and set(call["arguments"]) <= {"a"} for call in read if calls)
    assert kinds[True] > 1
    assert kinds[False] > 1


def test_logprobs_stay_those_of_the_model(alone: list[list[Answer]]) -> None:
    """Spec D9: raw, so tokens that could not come are listed."""
    answer = alone[0][0]
    assert any(entry.rank > 1 for entry in answer.logprobs), "the grammar has changed nothing"
    assert all(entry.logprob <= entry.top[0][1] for entry in answer.logprobs)


class Preempting(Driver):
    """Takes the blocks of a running request now and then."""

    def step(self) -> list[OutputDelta]:
        scheduler = self.engine._scheduler
        idle = [request for request in scheduler.running if not request.num_in_flight]
        self.random = getattr(self, "random", Random(3))
        if idle and self.random.random() < 0.3:
            scheduler.population.preempt(self.random.choice(idle))
        return super().step()


def together(driver: Driver) -> list[list[Answer]]:
    return driver.run(JOBS)


def at_random_steps(driver: Driver) -> list[list[Answer]]:
    random = Random(1)
    return driver.run(at_steps(JOBS, [random.randrange(40) for _ in JOBS]))


def twice(driver: Driver) -> list[list[Answer]]:
    driver.run(JOBS)
    return driver.run(JOBS)


Way = tuple[type[Driver], dict[str, Any], Callable[[Driver], list[list[Answer]]], Callable[[EngineStats], bool]]

WAYS: dict[str, Way] = {
    "together": (Driver, LARGE, together, lambda stats: True),
    "twice": (Driver, LARGE, twice, lambda stats: stats.prefix_hits > 0),
    "chunked": (Driver, LARGE | {"max_num_batched_tokens": 64}, at_random_steps, lambda stats: True),
    "two in flight": (Driver, LARGE | {"max_steps_in_flight": 2}, at_random_steps, lambda stats: True),
    "small pool": (Driver, SMALL | {"swap_space": 0}, together, lambda stats: stats.num_preemptions > 3),
    "swapped": (Driver, SMALL | {"preemption_mode": "swap", "swap_space": 0.01}, together,
                lambda stats: stats.num_swaps > 3),
    "preempted": (Preempting, LARGE, at_random_steps, lambda stats: stats.num_preemptions > 20),
    "drafts": (Driver, LARGE | {"speculation": "ngram"}, at_random_steps, lambda stats: stats.num_accepted_tokens > 5),
    "everything": (Preempting, SMALL | {"speculation": "ngram", "max_steps_in_flight": 2}, at_random_steps,
                   lambda stats: stats.num_preemptions > 20),
    "few at a time": (Driver, LARGE | {"max_num_seqs": 5, "max_num_batched_tokens": 9}, together, lambda stats: True),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_each_mechanism_gives_the_same_bits(rand: Path, expected: list[list[Any]], way: str) -> None:
    kind, settings, run, was_used = WAYS[way]
    driver = kind(rand, checks="max_steps_in_flight" not in settings, **settings)
    assert all_bits(run(driver)) == expected
    assert was_used(driver.stats)


def test_requests_without_a_grammar_do_not_feel_the_others(rand: Path, expected: list[list[Any]]) -> None:
    plain = [place for place, job in enumerate(JOBS) if job.params.constraint is None]
    driver = Driver(rand, **LARGE)
    assert all_bits(driver.run([JOBS[place] for place in plain])) == [expected[place] for place in plain]


TEXTS = ["München", "東京", "😀", 'a"b', "tab\there", "back\\slash", ""]


def draw_all(driver: Driver, asked: dict[str, Any], seeds: int = 20, **params: Any) -> list[str]:
    jobs = [
        Job([5, 6, 7], SamplingParams(temperature=1.0, seed=seed, max_tokens=60, structured_outputs=asked, **params))
        for seed in range(seeds)
    ]
    texts = []
    for (answer,) in driver.run(jobs):
        assert answer.finish_reason == "stop"
        assert "\N{REPLACEMENT CHARACTER}" not in answer.text
        texts.append(answer.text)
    return texts


@pytest.fixture(scope="module")
def driver(rand: Path) -> Driver:
    return Driver(rand, checks=False, **LARGE)


def test_b41_each_value_of_an_enum_comes_and_nothing_else(driver: Driver) -> None:
    values = [json.loads(text) for text in draw_all(driver, {"json": {"enum": TEXTS}}, 80)]
    assert set(values) <= set(TEXTS)
    assert len(set(values)) >= 5
    assert set(draw_all(driver, {"choice": TEXTS}, 40)) <= set(TEXTS)


@pytest.mark.parametrize("const", ["\u00e9", "e\u0301", "naïve 名前"])
def test_b41_a_constant_is_as_it_was_sent(driver: Driver, const: str) -> None:
    assert [json.loads(text) for text in draw_all(driver, {"json": {"const": const}}, 3)] == [const] * 3


def test_b41_names_with_accents_regular_expressions_and_lengths(driver: Driver) -> None:
    schema = {
        "type": "object",
        "properties": {"naïve": {"type": "boolean"}, "名前": {"type": "string", "maxLength": 2}},
        "required": ["naïve", "名前"],
        "additionalProperties": False,
    }
    for text in draw_all(driver, {"json": schema}):
        value = json.loads(text)
        assert list(value) == ["naïve", "名前"]
        assert len(value["名前"]) <= 2
    assert all(len(text) == 3 and set(text) <= set("äöü") for text in draw_all(driver, {"regex": "[äöü]{3}"}))


def test_d6_a_finished_grammar_wins(driver: Driver) -> None:
    for asked, text in (({"regex": ""}, ""), ({"choice": ["ab"]}, "ab"), ({"regex": "(ab)?"}, "ab")):
        params: dict[str, Any] = {"min_tokens": 30, "ignore_eos": True}
        assert set(draw_all(driver, asked, 4, **params)) == {text}


def test_a_stop_string_ends_a_text_before_its_grammar_does(driver: Driver) -> None:
    assert set(draw_all(driver, {"choice": ["one, two"]}, 2, stop=[", "])) == {"one"}


def test_masks_that_leave_nothing_end_their_own_request(driver: Driver) -> None:
    bad = SamplingParams(structured_outputs={"regex": "[a-c]+"}, allowed_token_ids=[300], max_tokens=5)
    good = SamplingParams(structured_outputs={"regex": "[a-c]{4}"}, temperature=0.0, max_tokens=9)
    (failed,), (answer,) = driver.run([Job([1, 2], bad), Job([3, 4], good)])
    assert failed.finish_reason == "error"
    assert "structured_outputs" in (failed.deltas[-1].error or "")
    assert len(answer.text) == 4


def test_a_grammar_that_breaks_ends_its_own_request(rand: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.runner.row_grammar import RowGrammar

    fill = RowGrammar.fill

    def failing(self: RowGrammar, drafts: Any = ()) -> None:
        if not hasattr(failing, "broken"):
            failing.broken = self  # type: ignore[attr-defined]
        if failing.broken is self:  # type: ignore[attr-defined]
            raise RuntimeError
        fill(self, drafts)

    monkeypatch.setattr(RowGrammar, "fill", failing)
    params = SamplingParams(structured_outputs={"regex": "[a-c]{4}"}, temperature=0.0, max_tokens=9)
    (failed,), (answer,) = Driver(rand, **LARGE).run([Job([1, 2], params), Job([3, 4], params)])
    assert failed.finish_reason == "error"
    assert "RuntimeError" in (failed.deltas[-1].error or "")
    assert (answer.finish_reason, len(answer.text)) == ("stop", 4)


ATTACKS: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": "(ab|cd|[e-z]{1,3}){4,12}!"}, "stop": ["zz", "cda"], "min_tokens": 4},
    {"structured_outputs": {"json": PERSON}, "logit_bias": {ord("{"): -9.0, ord(" "): 5.0}, "bad_words": ["red"]},
    {"structured_outputs": {"grammar": 'root ::= "x" | "x" root | "y" root'}, "stop": ["yxy"], "bad_words": ["xxx"]},
    {"structured_outputs": {"json": ROWS}, "thinking": Thinking("a", "e", is_open=True), "logit_bias": {ord("e"): 2.0}},
]


def attack_jobs() -> list[Job]:
    """Eight choices each, with all else that changes what may be drawn."""
    return [
        Job(
            random_ids(9 + 5 * index, RAND_VOCAB - 8, seed=40 + index),
            SamplingParams(n=8, max_tokens=40, temperature=1.0, seed=index, logprobs=1, **fields),
        )
        for index, fields in enumerate(ATTACKS)
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"swap_space": 0},
        {"preemption_mode": "swap", "swap_space": 0.01},
        {"swap_space": 0, "speculation": "ngram", "max_steps_in_flight": 2},
    ],
    ids=["recomputed", "swapped", "drafted, two in flight"],
)
def test_eight_choices_in_a_pool_of_few_blocks(rand: Path, settings: dict[str, Any]) -> None:
    jobs = attack_jobs()
    expected = all_bits(run_apart(Driver(rand, enable_prefix_caching=False, **LARGE), jobs))
    small = {**LARGE, "num_blocks": 44, "max_model_len": 170}
    driver = Driver(rand, checks="max_steps_in_flight" not in settings, **small, **settings)
    assert all_bits(driver.run(jobs)) == expected
    assert driver.engine.stats().num_preemptions > 3
    assert driver.engine.stats().num_active_blocks == 0


class Mean:
    """Implements ``Drafter``, and is sure of all it says: tokens that no grammar takes, ends, and what came before."""

    def follow(self, token_ids: Sequence[int]) -> None:
        self._source = Random(len(token_ids))

    def propose(self, token_ids: Sequence[int]) -> Iterator[tuple[int, float]]:
        source = Random(sum(token_ids))
        while True:
            yield source.choice([*token_ids[-8:], RAND_VOCAB - 1, RAND_VOCAB - 2, 0, ord("x"), ord("{")]), 1.0


def test_drafts_of_a_mean_drafter_change_nothing_also_where_grammars_fail(rand: Path) -> None:
    """Hostile grammars among them: one that gets too ambiguous, one that is too complex to follow."""
    hostile: list[dict[str, Any]] = [
        {"grammar": 'start: s\ns: s s | s s s | "x"'},
        {"regex": "(?:(?:x|b)*x(?:x|b){14}){1,30}"},
        {"regex": "x{0,200}"},
    ]
    params = [SamplingParams(temperature=1.0, seed=1, max_tokens=60, structured_outputs=asked) for asked in hostile]
    jobs = [*attack_jobs(), *(Job([1, 2, index], each) for index, each in enumerate(params))]
    expected = all_bits(run_apart(Driver(rand, enable_prefix_caching=False, **LARGE), jobs))
    driver = Driver(rand, **LARGE)
    speculation = driver.engine._scheduler.speculation
    speculation._max_draft_tokens, speculation._make_drafter = 5, Mean
    assert all_bits(driver.run(jobs)) == expected
    assert driver.engine.stats().num_draft_tokens > 100


def test_b52_rows_beyond_the_tokenizer_are_never_drawn(tmp_path: Path) -> None:
    """The model has 512 rows, the tokenizer 500 ids."""
    driver = Driver(rand_model(tmp_path, tokenizer_size=500), **LARGE)
    for text in draw_all(driver, {"json": {"type": "string", "maxLength": 20}}, 10, logit_bias={505: 100.0}):
        json.loads(text)
