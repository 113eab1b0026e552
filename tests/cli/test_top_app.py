"""``octavo top`` on a terminal, driven by textual's own pilot; and its map as characters."""

import importlib.util
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import DataTable, Static

from octavo.cli.top_app import BAR_WIDTH, PoolMap, TopApp, bar
from octavo.cli.top_map import ACTIVE, CACHED, FREE, PINNED, SHARED, WIDELY_SHARED, blocks_per_cell, rows_of, tally
from octavo.cli.top_reader import Reading, ServerReader, parse_figures
from octavo.cli.top_screen import figures
from octavo.core.errors import OctavoError
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import rand_model
from tests.support.terminal import wait_until_shown
from tests.support.waiting import PATIENCE, until

CODES = bytes([0, 1, 254, 255, 2, 3, 4, 6, 80])
SIGNS = [FREE, CACHED, PINNED, PINNED, ACTIVE, ACTIVE, SHARED, WIDELY_SHARED, WIDELY_SHARED]


def request(number: int, place: str = "running") -> list[Any]:
    return [f"cmpl-{number:08d}", 0, place, "default", 0, 40, 16, 32, 8, 3, 100]


class FakeReader:
    """A server with a few blocks; ``error``: it has gone."""

    url = "http://fake"

    def __init__(self, pool: dict[str, Any] | None) -> None:
        self.pool = pool
        self.asked: list[int] = []
        self.num_looks = 0
        self.error = ""

    def read(self) -> Reading:
        self.num_looks += 1
        if self.error:
            raise OctavoError(self.error)
        figures = {"vllm:generation_tokens_total": 100.0 * self.num_looks, "vllm:num_requests_running": 2.0}
        return Reading(float(self.num_looks), "fake-model", figures, None, "it needs the admin key")

    def read_pool(self) -> dict[str, Any] | None:
        return self.pool

    def read_block(self, block: int) -> dict[str, Any]:
        self.asked.append(block)
        holders = [{"request": "cmpl-00000001", "choice": 0}]
        shown = {"id": block, "references": 2, "pins": 0, "in_prefix_cache": True, "filled": 16, "text": "hello\x1b[2J"}
        return shown | {"holders": holders}


def pool_of(blocks: bytes, *requests: list[Any]) -> dict[str, Any]:
    return {"blocks": b64encode(blocks).decode(), "requests": list(requests)}


def test_a_character_a_block_and_one_for_several_where_there_are_many() -> None:
    assert rows_of(CODES, 4, 1) == [SIGNS[:4], SIGNS[4:8], SIGNS[8:]]
    assert len({sign.character for sign in SIGNS}) == 6
    assert (blocks_per_cell(9, 3, 3), blocks_per_cell(10, 3, 3), blocks_per_cell(0, 3, 3)) == (1, 2, 1)
    assert rows_of(bytes([0, 0, 2, 0, 1, 1, 2]), 2, 3) == [[FREE, CACHED], [ACTIVE]]
    assert rows_of(b"", 4, 1) == []
    assert [tally(CODES)[sign] for sign in (FREE, PINNED, ACTIVE)] == [1, 2, 2]


def test_the_bar_of_a_request() -> None:
    assert bar(request(1), 48).plain == "▒" * 8 + "█" * 8 + "·" * 4 + "▓" * 4
    assert len(bar(request(1), 96).plain) == BAR_WIDTH // 2


async def test_map_queues_and_rates() -> None:
    reader = FakeReader(pool_of(CODES, request(1), request(2, "waiting")))
    app = TopApp(reader, 0.05)
    async with app.run_test(size=(100, 30)) as pilot:
        shown = app.query_one("#figures", Static)
        await until(lambda: "generation 100.0 tokens/s" in str(shown.content))
        assert "fake-model at http://fake" in str(shown.content)
        assert app.query_one(PoolMap).render().plain == "".join(sign.character for sign in SIGNS)
        table = app.query_one(DataTable)
        assert table.row_count == 2
        assert [str(cell) for cell in table.get_row_at(1)[:6]] == ["…00000002/0", "waiting", "40", "16", "8", "3"]
        await pilot.press("tab" if not app.query_one(PoolMap).has_focus else "right")
        app.query_one(PoolMap).focus()
        await pilot.press("right", "right", "left", "up")
        line = app.query_one("#block", Static)
        await until(lambda: "hello" in str(line.content))
        assert "shared by 2, 16 slots filled, …00000001/0" in str(line.content)
        assert r"hello\x1b[2J" in str(line.content), "a terminal acts on nothing in it"
        await pilot.press("p")
        await app.workers.wait_for_complete()  # those that had begun
        seen = reader.num_looks
        await pilot.pause(0.3)
        assert reader.num_looks == seen
        await pilot.press("p")
        reader.error = "cannot reach http://fake"
        await until(lambda: "cannot reach" in str(shown.content))
        await pilot.press("q")


async def test_names_are_no_markup() -> None:
    app = TopApp(FakeReader(pool_of(CODES, ["a[/red]", *request(1)[1:]])), 0.05)
    async with app.run_test(size=(100, 30)) as pilot:
        table = app.query_one(DataTable)
        await until(lambda: table.row_count == 1)
        await pilot.pause()
        assert "a[/red]/0" in str(table.get_row_at(0)[0])


async def test_a_slow_server_is_asked_once_at_a_time() -> None:
    reader, answer = FakeReader(None), threading.Event()
    read = reader.read

    def read_slowly() -> Reading:
        reading = read()
        assert answer.wait(PATIENCE)
        return reading

    reader.read = read_slowly  # type: ignore[method-assign]
    app = TopApp(reader, 0.02)
    async with app.run_test() as pilot:
        await pilot.pause(0.3)
        assert reader.num_looks == 1
        answer.set()
        await until(lambda: reader.num_looks > 3)


def test_rates_over_a_restart_are_those_since() -> None:
    before = Reading(1.0, "m", {"vllm:generation_tokens_total": 500.0}, None)
    now = Reading(3.0, "m", {"vllm:generation_tokens_total": 40.0}, None)
    assert "generation 20.0 tokens/s" in "\n".join(figures(before, now))


PAGES = ("", "<html>hi</html>", '{"a", ="c"} b ', "# TYPE node_load1 gauge\nnode_load1 0.5\n")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_is_not_octavos(page: str) -> None:
    with pytest.raises((LookupError, ValueError)):
        parse_figures(page)


async def test_without_the_admin_key_and_on_a_small_screen() -> None:
    app = TopApp(FakeReader(None), 0.05)
    async with app.run_test(size=(40, 12)):
        line = app.query_one("#block", Static)
        await until(lambda: "The pool is not shown: it needs the admin key" in str(line.content))


async def test_a_large_pool_fits_the_screen() -> None:
    app = TopApp(FakeReader(pool_of(bytes([2, 1]) * 20_000)), 0.05)
    async with app.run_test(size=(80, 24)):
        shown = app.query_one(PoolMap)
        await until(lambda: shown.blocks)
        lines = shown.render().plain.split("\n")
        assert len(lines) <= shown.size.height
        assert max(map(len, lines)) <= shown.size.width


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model: Path = rand_model(tmp_path_factory.mktemp("rand"))
    flags = ("--num-blocks", "80", "--threads", "1", "--admin-key", "k", "--dashboard-text")
    with running_real_server(model, *flags) as running:
        yield running.wait_ready()


def test_it_reads_a_server(server: ServerProcess) -> None:
    reader = ServerReader(server.url, "k", 5)
    first, second = reader.read_pool(), reader.read_pool()
    assert first is not None
    assert second is not None
    assert first["num_blocks"] == 80
    assert reader.read_block(3)["id"] == 3
    with pytest.raises(OctavoError, match="answers 404"):
        reader.read_block(80)
    assert ServerReader(server.url, None, 5).read_pool() is None


@pytest.mark.parametrize(("flags", "shows"), [((), "▒  PROMPT"), (("--plain",), "LAST DECISION")])
def test_on_a_terminal(server: ServerProcess, flags: tuple[str, ...], shows: str) -> None:
    """By a pseudo terminal, as over SSH."""
    assert importlib.util.find_spec("textual")
    command = [sys.executable, "-m", "octavo", "top", server.url, "--api-key", "k", "--interval", "0.3", *flags]
    environment = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    wait_until_shown(command, shows, holds_output=True, environment=environment)
