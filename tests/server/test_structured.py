"""The fields that constrain an answer: every form, what is refused with which field's name (B38), limits and time."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from octavo.core.errors import InvalidRequestError
from octavo.core.structured import Constraint
from octavo.metrics.prometheus import EngineMetrics
from octavo.server.errors import ApiError
from octavo.server.queueing.fair_turns import FairTurns
from octavo.server.queueing.timing import Timing
from octavo.server.structured import Constraints
from octavo.structured import checker
from octavo.structured.checker import ConstraintChecker
from tests.server.test_validation import CHAT, COMPLETION, case_id, check_error
from tests.support.fake_server import ServerProcess, running_server
from tests.support.waiting import PATIENCE, until

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def schema_format(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema} | fields}}


GOOD: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    schema_format(PERSON),
    schema_format(PERSON, strict=True, description="a person"),
    schema_format(True),
    {"structured_outputs": {"json": PERSON}},
    {"structured_outputs": {"json": '{"type": "object"}'}},
    {"structured_outputs": {"regex": "[äöü]{3}"}},
    {"structured_outputs": {"choice": ["a", "東京", ""]}},
    {"structured_outputs": {"grammar": 'root ::= "a" | "b" root'}},
    {"structured_outputs": {"json_object": True}},
    {"guided_json": PERSON},
    {"guided_regex": "a+"},
    {"guided_choice": ["a", "b"]},
    {"guided_grammar": 'start: "a"'},
    {"guided_json_object": True},
    {"guided_json_object": False},
    {"response_format": {"type": "text"}, "structured_outputs": {"regex": ""}, "guided_json": None},
]

BAD: list[tuple[str, dict[str, Any]]] = [
    *(("structured_outputs", {"structured_outputs": {"regex": pattern}})
      for pattern in ("[", "(?P<", "a{2,1}", "\\", "(?=x)x", r"(a)\1", "a" * 5000)),
    *(("structured_outputs", {"structured_outputs": {"grammar": grammar}})
      for grammar in ("start: undefined", "root ::= undefined", "", "start: start", "x" * 300_000)),
    *(("response_format", schema_format(schema)) for schema in (
        {"type": "nope"}, {"type": 5}, {"$ref": "#/nope"}, {"enum": []}, {"minimum": "x"},
        {"type": "integer", "minimum": 5, "maximum": 3}, False, "text", '{"type": "object"}', None, 5, [],
        {"not": {}}, {"type": "array", "uniqueItems": True}, {"const": "x" * 300_000},
    )),
    ("response_format", {"response_format": {"type": "json_schema"}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": 5}}),
    ("response_format", {"response_format": {"type": "structural_tag"}}),
    ("response_format", {"response_format": 5}),
    ("structured_outputs", {"structured_outputs": {}}),
    ("structured_outputs", {"structured_outputs": "json"}),
    ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
    ("structured_outputs", {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
    ("guided_regex", {"guided_json": {}, "guided_regex": "a"}),
    ("guided_choice", {"guided_choice": []}),
    ("guided_json", {"guided_json": {"type": "nope"}}),
    ("guided_grammar", {"guided_grammar": 5}),
    ("guided_grammar", {"guided_grammar": "start: undefined"}),
]  # fmt: skip


@pytest.mark.parametrize("fields", GOOD, ids=case_id)
def test_every_form_is_taken(client: httpx.Client, fields: dict[str, Any]) -> None:
    for path, body in (("completions", COMPLETION), ("chat/completions", CHAT)):
        response = client.post(f"/v1/{path}", json=body | fields)
        assert response.status_code == 200, response.text[:300]


@pytest.mark.parametrize(("field", "fields"), BAD, ids=case_id)
def test_b38_what_cannot_be_is_refused_by_name_in_time(
    client: httpx.Client, field: str, fields: dict[str, Any]
) -> None:
    for path, body in (("completions", COMPLETION), ("chat/completions", CHAT)):
        start = time.monotonic()
        error = check_error(client.post(f"/v1/{path}", json=body | fields))
        assert time.monotonic() - start < 2.0
        assert error["param"] == field or (field == "structured_outputs" and error["param"].startswith(f"{field}."))
        assert "panic" not in error["message"]


def test_nesting_has_its_limit(client: httpx.Client) -> None:
    schema: dict[str, Any] = {}
    for _ in range(70):
        schema = {"properties": {"a": schema}}
    check_error(client.post("/v1/completions", json=COMPLETION | {"guided_json": schema}))


@pytest.mark.parametrize("fields", [GOOD[1], GOOD[5], GOOD[11]])
def test_a_beam_search_goes_with_none(client: httpx.Client, fields: dict[str, Any]) -> None:
    error = check_error(client.post("/v1/completions", json=COMPLETION | {"use_beam_search": True, "n": 2} | fields))
    assert error["param"] == next(iter(fields))


@pytest.fixture
def one_server() -> Iterator[ServerProcess]:
    with running_server() as running:
        yield running.wait_ready()


def test_the_first_one_is_answered_in_time_and_two_bad_ones_at_once_ten_times(one_server: ServerProcess) -> None:
    """The process that tries them is only started now."""
    times: list[float] = []

    def send(number: int) -> None:
        with one_server.client() as client:
            start = time.monotonic()
            fields = {"structured_outputs": {"regex": f"[{number}"}}
            check_error(client.post("/v1/completions", json=COMPLETION | fields))
            times.append(time.monotonic() - start)

    for turn in range(10):
        threads = [threading.Thread(target=send, args=(2 * turn + i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(times) == 20
    with one_server.client() as client:
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200


LARGE = Constraint(
    "json_schema", json.dumps({"anyOf": [{"type": "string", "minLength": number} for number in range(5000)]})
)


def test_one_that_takes_too_long_ends_its_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "CHECK_SECONDS", 0.01)
    constraints = ConstraintChecker()
    with pytest.raises(InvalidRequestError, match=r"not compiled after 0\.01 s") as caught:
        constraints.check(LARGE, "guided_json")
    assert caught.value.param == "guided_json"
    monkeypatch.setattr(checker, "CHECK_SECONDS", 30.0)
    constraints.check(Constraint("regex", "a"), "x")
    assert constraints.knows(Constraint("regex", "a"))
    assert not constraints.knows(LARGE)
    constraints.close()


def test_one_that_takes_too_much_memory_ends_its_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "CHECK_NUM_BYTES", 2**20)
    constraints = ConstraintChecker()
    with pytest.raises(InvalidRequestError, match=r"takes too much|too much memory"):
        constraints.check(Constraint("choice", json.dumps([f"{number}" * 9 for number in range(20_000)])), "x")
    constraints.close()


def test_a_process_that_the_system_has_ended_is_no_answer_about_a_grammar() -> None:
    constraints = ConstraintChecker()
    constraints.check(Constraint("regex", "a"), "x")
    (idle,) = constraints._workers._idle
    idle.kill()
    idle.wait()
    constraints.check(Constraint("regex", "b"), "x")
    assert constraints._workers._idle != [idle]
    constraints.close()


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "MAX_KNOWN", 2)
    constraints = ConstraintChecker()
    patterns = [Constraint("regex", letter) for letter in "abc"]
    for pattern in patterns:
        constraints.check(pattern, "x")
    assert [constraints.knows(pattern) for pattern in patterns] == [False, True, True]
    constraints.close()


@pytest.mark.parametrize(
    ("patience", "seconds", "status", "code"),
    [(0.05, None, 429, "queue_timeout"), (None, 0.05, 504, "deadline_exceeded"), (9.0, 0.05, 504, "deadline_exceeded")],
)
async def test_a_request_waits_for_the_trial_no_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch, patience: float | None, seconds: float | None, status: int, code: str
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(ConstraintChecker, "check", lambda *_: is_over.wait(30))
    metrics = EngineMetrics("m")
    constraints = Constraints(metrics)
    try:
        with pytest.raises(ApiError) as caught:
            await constraints.check(
                Constraint("regex", "a"), "guided_regex", Timing(time.time(), patience, seconds), "t"
            )
    finally:
        is_over.set()
        constraints.close()
    assert (caught.value.status, caught.value.code) == (status, code)
    bound = "queue" if status == 429 else "deadline"
    assert metrics.timed_out == {"queue": 0, "deadline": 0} | {bound: 1}


async def test_tenants_have_turns_however_many_wait_of_one() -> None:
    turns, order = FairTurns(1, 3), []
    await turns.take("first")

    async def wait(tenant: str) -> None:
        await turns.take(tenant)
        order.append(tenant)
        turns.give_up()

    waiting = [asyncio.create_task(wait(tenant)) for tenant in "aaabbc"]
    await asyncio.sleep(0)
    assert turns.is_full("a")
    assert not turns.is_full("b")
    waiting[2].cancel()
    await asyncio.sleep(0)
    assert not turns.is_full("a")
    turns.give_up()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert "".join(order) == "abcab"
    await turns.take("again")
    late = asyncio.create_task(turns.take("late"))
    await asyncio.sleep(0)
    turns.give_up()
    late.cancel()  # its turn has just come
    await asyncio.gather(late, return_exceptions=True)
    await asyncio.wait_for(turns.take("last"), PATIENCE)


async def test_a_turn_is_not_lost_to_one_who_has_just_been_cancelled() -> None:
    turns = FairTurns(1, 3)
    await turns.take("first")
    waiting = [asyncio.create_task(turns.take(tenant)) for tenant in "aab"]
    await asyncio.sleep(0)
    waiting[0].cancel()
    turns.give_up()  # before the one who is cancelled has come to leave
    await waiting[1]
    waiting[2].cancel()
    turns.give_up()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [each.cancelled() for each in waiting] == [True, False, True]
    await asyncio.wait_for(turns.take("last"), PATIENCE)


async def test_a_turn_lasts_as_long_as_its_thread_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the one who asked has gone: else one tenant's next would stand before all others' in the threads' line."""
    may_end = {text: threading.Event() for text in "12345"}
    asked = list[str]()

    def check(_self: object, constraint: Constraint, _param: str) -> None:
        asked.append(constraint.text)
        may_end[constraint.text].wait(PATIENCE)

    monkeypatch.setattr(ConstraintChecker, "check", check)
    constraints = Constraints(EngineMetrics("m"))

    def all_asked(number: int) -> bool:
        return len(asked) == number

    def ask(text: str, tenant: str = "a") -> "asyncio.Task[None]":
        timing = Timing(time.time())
        return asyncio.create_task(constraints.check(Constraint("regex", text), "x", timing, tenant))

    try:
        gone = [ask(text) for text in "12"]
        await until(partial(all_asked, 2))
        for each in gone:
            each.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        waiting = [ask("3"), ask("4"), ask("5", "b")]
        for number, text in enumerate("123", 3):
            may_end[text].set()
            await until(partial(all_asked, number))
        assert asked[2:] == ["3", "5", "4"]
        may_end["4"].set()
        may_end["5"].set()
        await asyncio.gather(*waiting)
    finally:
        for event in may_end.values():
            event.set()
        constraints.close()
