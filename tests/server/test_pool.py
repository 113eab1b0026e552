"""GET /debug/pool: what the pool's blocks do, over HTTP; and how seldom the engine is asked."""

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from octavo.core.errors import EngineDeadError
from octavo.engine.looks import EventLook, Look, StepLook
from octavo.engine.traces import RequestEvent
from octavo.server.watching.pool_shapes import PoolBlock, PoolBody, PoolRequest
from octavo.server.watching.pool_watch import LEAST_SECONDS, PoolWatch
from tests.support.fake_server import ServerProcess, running_real_server, running_server
from tests.support.models import rand_model
from tests.support.waiting import wait_until

ADMIN = "admin-key"


@pytest.fixture(scope="module")
def pool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = rand_model(tmp_path_factory.mktemp("rand"))
    flags = ("--num-blocks", "1000", "--max-num-seqs", "4", "--threads", "1", "--admin-key", ADMIN, "--dashboard-text")
    with running_real_server(model, *flags) as running:
        yield running.wait_ready()


@pytest.fixture
def admin(pool_server: ServerProcess) -> Iterator[httpx.Client]:
    with pool_server.client(Authorization=f"Bearer {ADMIN}") as client:
        yield client


def look_at(client: httpx.Client, after: int = 0) -> PoolBody:
    return msgspec.json.decode(client.get("/debug/pool", params={"after": after}).content, type=PoolBody)


def test_blocks_requests_steps_and_decisions(admin: httpx.Client) -> None:
    before = look_at(admin)
    body = {"prompt": list(range(3, 40)), "max_tokens": 4000, "n": 2, "stream": True, "ignore_eos": True}
    headers = {"X-Request-Id": "watched"}
    with admin.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        lines = response.iter_lines()  # kept: the stream ends with it
        next(lines)
        shown = look_at(admin)
        wait_until(lambda: len(look_at(admin).requests) == 2)
        now = look_at(admin)
        tables = msgspec.json.decode(admin.get("/debug/pool/requests/watched").content, type=PoolRequest)
        shared = tables.choices[0].tables[0][0]
        block = msgspec.json.decode(admin.get(f"/debug/pool/blocks/{shared}").content, type=PoolBlock)
    assert now.look > before.look
    assert shown.num_blocks == 1000
    codes = b64decode(now.blocks)
    assert len(codes) == 1000
    assert sum(code >> 1 == 2 for code in codes) == 2
    assert [each.choice for each in now.requests] == [0, 1]
    assert {choice.tables[0][0] for choice in tables.choices} == {shared}
    assert (block.references, block.filled, block.token_ids) == (2, 16, list(range(3, 19)))
    assert block.text
    assert [holder.block for holder in block.holders] == [0, 0]
    wait_until(lambda: not look_at(admin).requests)
    later = look_at(admin, after=before.look)
    assert {"arrived", "admitted", "forked"} <= {event.event for event in later.events}
    assert {event.x_request_id for event in later.events if event.event == "admitted"} == {"watched"}
    assert sum(step.num_prompt_tokens for step in later.steps) == 37
    ids = [step.step_id for step in later.steps]
    assert ids == sorted(set(ids))
    assert look_at(admin, after=later.look + 10**6).look >= later.look


@pytest.mark.parametrize("after", ["-1", "x", "", "1.5"])
def test_an_after_that_is_none(admin: httpx.Client, after: str) -> None:
    assert admin.get("/debug/pool", params={"after": after}).status_code == 400


@pytest.mark.parametrize("block_id", ["1000", "-1", "x", "9" * 40])
def test_blocks_that_are_not_there(admin: httpx.Client, block_id: str) -> None:
    answer = admin.get(f"/debug/pool/blocks/{block_id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "block_not_found")


def test_requests_that_are_not_there(admin: httpx.Client) -> None:
    assert admin.get("/debug/pool/requests/nobody").json() == {"id": "nobody", "choices": []}


def test_text_is_told_by_a_setting_only() -> None:
    with running_server(admin_key=ADMIN) as server:
        with server.wait_ready().client(Authorization=f"Bearer {ADMIN}") as client:
            block = client.get("/debug/pool/blocks/3").json()
            assert (block["token_ids"], block["text"]) == (None, None)
            assert client.get("/debug/pool").status_code == 200
        with server.client() as client:
            for path in ("/debug/pool", "/debug/pool/blocks/1", "/debug/pool/requests/a"):
                assert client.get(path).status_code == 403


def a_look(seconds: float, **fields: Any) -> Look:
    counts = {"num_steps": 0, "num_running": 0, "num_waiting": 0, "token_budget": 8, "max_num_seqs": 1}
    lists = {"requests": [], "steps": [], "events": []}
    return Look(**({"time": 0.0, "block_size": 4, "blocks": b"", "seconds": seconds} | counts | lists | fields))


async def test_the_engine_is_asked_no_more_often_than_it_can_bear() -> None:
    now, num_asked, seconds = 0.0, 0, 0.0001

    async def take_look() -> Look:
        nonlocal num_asked
        num_asked += 1
        return a_look(seconds)

    watch = PoolWatch(take_look, lambda: now)
    for _ in range(100):
        await watch.look()
        now += LEAST_SECONDS / 10
    assert 9 <= num_asked <= 11
    seconds = 0.1  # a pool so large that a look takes that long
    for _ in range(2):
        now += LEAST_SECONDS
        await watch.look()
    num_asked = 0
    for _ in range(100):
        now += 1.0
        await watch.look()
    assert num_asked * seconds <= 100 / 250 + seconds
    assert watch.interval == 25.0


async def test_one_look_that_was_interrupted_does_not_make_the_next_wait() -> None:
    now, seconds = 0.0, iter([0.001, 5.0, 0.001, 5.0, 5.0])

    async def take_look() -> Look:
        return a_look(next(seconds))

    watch, intervals = PoolWatch(take_look, lambda: now), list[float]()
    for _ in range(5):
        await watch.look()
        intervals.append(watch.interval)
        now += watch.interval
    assert intervals == [0.25, 0.25, 0.25, 0.25, 1250.0]


async def test_who_looks_often_gets_all_once_and_who_looks_seldom_the_latest() -> None:
    now, number = 0.0, 0

    async def take_look() -> Look:
        nonlocal number
        number += 1
        step = StepLook(number, 0.0, 0.0, 1, 1, 1)
        return a_look(0.0, steps=[step], events=[EventLook("a", RequestEvent(0.0, number, 0, "arrived", (1, 1)))])

    watch = PoolWatch(take_look, lambda: now)
    seen = list[int]()
    after = 0
    for _ in range(1000):
        now += LEAST_SECONDS
        await watch.look()
        seen += [step.step_id for step in watch.steps_after(after)]
        assert len(watch.events_after(after)) == 1
        after = watch.num_looks
    assert seen == list(range(1, 1001))
    assert [step.step_id for step in watch.steps_after(0)] == list(range(489, 1001))


async def test_an_engine_that_is_gone_is_told() -> None:
    async def take_look() -> Look:
        raise EngineDeadError("gone")

    watch = PoolWatch(take_look, lambda: 0.0)
    for _ in range(2):
        with pytest.raises(EngineDeadError):
            await watch.look()
