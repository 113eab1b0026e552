"""The dashboard, as people use it: in Chromium, before a real server."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Route, expect

from tests.dashboard.browser import ADMIN, Visit, running_browser
from tests.support.fake_server import ServerProcess, running_real_server
from tests.support.models import rand_model
from tests.support.waiting import PATIENCE, wait_until

expect.set_options(timeout=1000 * PATIENCE)
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 320, "height": 640}, "color_scheme": "dark", "has_touch": True},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = rand_model(tmp_path_factory.mktemp("rand"))
    flags = ("--num-blocks", "512", "--max-num-seqs", "4", "--threads", "1", "--admin-key", ADMIN, "--dashboard-text")
    with running_real_server(model, *flags) as running:
        yield running.wait_ready()


@pytest.fixture
def visit(browser: Browser, server: ServerProcess) -> Iterator[Visit]:
    opened = Visit(browser, server.url, **VIEWS["light"])
    yield opened
    opened.context.close()


@contextmanager
def load(server: ServerProcess, num_requests: int = 6) -> Iterator[None]:
    """So many requests with a common prompt run, or wait, until the end."""
    body = {"prompt": list(range(3, 90)), "max_tokens": 900, "ignore_eos": True, "n": 1}
    with ThreadPoolExecutor(num_requests) as threads, server.client() as client:
        is_over = False

        def go_on() -> None:
            while not is_over:
                client.post("/v1/completions", json=body)

        tasks = [threads.submit(go_on) for _ in range(num_requests)]
        try:
            yield
        finally:
            is_over = True
            for task in tasks:
                task.result()


def test_the_door(visit: Visit) -> None:
    page = visit.page
    page.goto(f"{visit.url}/dashboard")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]:visible")
    page.fill("#key", ADMIN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#state[data-state=live]")
    assert page.evaluate("document.cookie") == ""
    page.click("text=Log out")
    page.wait_for_selector("#key")
    assert httpx.get(f"{visit.url}/dashboard").status_code == 401


def test_what_has_ended_is_gone_from_the_queue(visit: Visit, server: ServerProcess) -> None:
    page = visit.log_in()
    with load(server, 2):
        page.wait_for_selector("#queue .request:visible >> nth=1")
    expect(page.locator("#queue .request:visible")).to_have_count(0)
    expect(page.locator("#queue .note")).to_be_visible()


def test_blocks_requests_steps_and_decisions(visit: Visit, server: ServerProcess) -> None:
    page = visit.log_in()
    assert page.inner_text("#pool-sum").startswith("512 blocks: ")
    with load(server):
        page.wait_for_selector("#queue .request:visible >> nth=5")
        expect(page.locator("#step")).to_contain_text("rows")
        page.focus(".marks")
        for key in ("ArrowDown", "ArrowRight", "Home"):
            page.keyboard.press(key)

        def is_shared() -> bool:
            page.keyboard.press("Enter")
            page.wait_for_selector("#block strong")
            return page.inner_text("#block strong").startswith("Block 0: active, in 4 tables")

        wait_until(is_shared)  # not while they all end at a time
        assert page.inner_text("#block pre")
        page.click("#block li button >> nth=0")
        assert page.locator("#queue .request[aria-pressed=true]").count() >= 1
        page.keyboard.press("Escape")
        page.focus("#timeline")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#step")).to_contain_text("Step ")
        expect(page.locator("#charts")).to_contain_text(re.compile("running [1-9]"))
        expect(page.locator("#log")).to_contain_text("first token")
        told = page.locator("#queue .request:visible").first.get_attribute("aria-label")
        assert "tokens of prompt" in (told or "")
        visit.keep_picture("dashboard-light", full_page=True)
    assert visit.complaints == []
    assert {url.split("/dashboard")[0].split("/debug")[0].split("/metrics")[0] for url in visit.asked} == {visit.url}


def test_the_playground_shows_how_blocks_fill_and_are_shared(browser: Browser, smollm2_path: Path) -> None:
    """With a model that takes its time to answer."""
    flags = ("--num-blocks", "256", "--threads", "1", "--admin-key", ADMIN)
    with running_real_server(smollm2_path, *flags) as server:
        visit = Visit(browser, server.wait_ready().url)
        play(visit)
        visit.context.close()


def play(visit: Visit) -> None:
    page = visit.log_in()
    page.fill("#prompt", "Tell me a very long story about a sheet of paper and all the people who wrote on it. " * 2)
    page.fill("#length", "150")
    page.click("#send")
    page.wait_for_selector(".strip .shared")
    expect(page.locator("#answers article")).to_have_count(2)
    expect(page.locator("#send")).to_have_text("Send")
    first, second = (page.locator("#answers article").nth(i) for i in range(2))
    assert first.locator("li").nth(0).inner_text() == second.locator("li").nth(0).inner_text()
    assert "of them found in the cache" in page.inner_text("#asked")
    page.wait_for_selector(".strip .cached")
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Stop")
    page.click("#send")
    expect(page.locator("#asked")).to_have_text("Stopped.")
    assert visit.complaints == []


def test_a_server_that_is_gone_is_told_and_watched_again(visit: Visit) -> None:
    page = visit.log_in()
    page.route("**/debug/pool*", lambda route: route.abort())
    page.wait_for_selector("#state[data-state=error]")
    page.unroute("**/debug/pool*")
    page.wait_for_selector("#state[data-state=live]")
    page.click("#pause")
    expect(page.locator("#state")).to_have_text("paused")
    num_asked = len(visit.asked)
    page.wait_for_timeout(3000)
    assert len(visit.asked) - num_asked <= 2  # those that were on their way


def test_what_is_told_of_a_block_stays_true(visit: Visit, server: ServerProcess) -> None:
    """Also while it is looked at for long; who moves through its holders by keyboard stays where they are."""
    page = visit.log_in()
    block = page.locator("#block")
    with load(server, 1):
        page.wait_for_selector("#queue .request:visible")
        page.focus(".marks")
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        expect(block.locator("strong")).to_contain_text("Block 0: active, in 1 table")
        page.focus("#block li button")
        with load(server, 1):
            expect(block.locator("strong")).to_contain_text("Block 0: active, in 2 tables")
    expect(block.locator("strong")).to_have_text("Block 0: cached")
    expect(block.locator("li")).to_have_count(0)
    expect(block).to_contain_text(re.compile("last used [0-9]"))
    told = block.inner_text()
    page.evaluate("document.querySelector('#block strong').id = 'same'")
    expect(block).not_to_have_text(told, use_inner_text=True)
    expect(page.locator("#same")).to_be_visible()
    assert visit.complaints == []


def test_a_server_that_does_not_answer_is_told(visit: Visit) -> None:
    page = visit.log_in()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/debug/pool?*", hold)
    expect(page.locator("#state")).to_have_text("the server does not answer")
    page.unroute("**/debug/pool?*")
    page.wait_for_selector("#state[data-state=live]")
    page.route("**/debug/pool?*", hold)
    num_held = len(held)
    wait_until(lambda: page.wait_for_timeout(50) or len(held) > num_held)
    page.click("#pause")
    held[-1].continue_()  # what was on its way when it was paused
    page.wait_for_timeout(1000)
    expect(page.locator("#state")).to_have_text("paused")


def test_charts_have_gaps_where_nothing_is_known(visit: Visit) -> None:
    page = visit.log_in()
    requests = page.locator("#charts figure").nth(2)
    expect(requests).to_have_attribute("aria-label", "Requests: running 0, waiting 0")
    page.route("**/metrics", lambda route: route.abort())
    expect(requests).to_have_attribute("aria-label", "Requests: running –, waiting –")
    page.unroute("**/metrics")
    expect(requests).to_have_attribute("aria-label", "Requests: running 0, waiting 0")


def test_rates_over_a_restart_are_those_since(visit: Visit) -> None:
    rates = """async (counts) => {
        const { parse, rate } = await import("/dashboard/series.js");
        const looks = counts.map((count, i) => ({ time: 2 * i, samples: parse(`n_total{model_name="m"} ${count}`) }));
        return looks.slice(1).map((look, i) => rate(looks[i], look, "n_total"));
    }"""
    assert visit.log_in().evaluate(rates, [100, 120, 6, 6]) == [10, 3, 0]


@pytest.mark.parametrize("view", VIEWS)
def test_for_all_eyes_and_screens(browser: Browser, server: ServerProcess, view: str) -> None:
    visit = Visit(browser, server.url, **VIEWS[view])
    visit.page.goto(f"{visit.url}/dashboard")
    assert Axe().run(visit.page).violations_count == 0
    page = visit.log_in()
    with load(server):
        page.wait_for_selector("#queue .request:visible >> nth=3")
        if view == "phone":
            page.tap(".marks", position={"x": 12, "y": 12})
            page.wait_for_selector("#block strong")
        expect(page.locator("#charts")).to_contain_text(re.compile("running [1-9]"))
        assert page.evaluate("document.documentElement.scrollWidth") <= VIEWS[view]["viewport"]["width"]
        visit.keep_picture(f"dashboard-{view}", full_page=True)
        found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    visit.context.close()


def large_look(number: int, rng: Random) -> dict[str, Any]:
    """4,096 blocks, of which many change, and 256 requests."""
    blocks = bytes(rng.choice((0, 1, 2, 3, 5, 7, 40, 254)) for _ in range(4096))
    places = ("running", "running", "waiting", "preempted")
    requests = [
        [f"chatcmpl-{i:032x}", 0, rng.choice(places), "default", 0, 300 + i, i, 310 + i, number % 200, 20, 900]
        for i in range(256)
    ]
    steps = [[16 * number + i, 0.25 * number, 0.015, rng.randrange(512), 256, 256] for i in range(16)]
    event = {"x_request_id": None, "time": 0.25 * number, "step": number, "choice": 0, "reason": ""}
    events = [event | {"request": f"r-{i}", "event": "admitted", "numbers": {"tokens": i}} for i in range(16)]
    counts = {"steps_so_far": 16 * number, "running": 200, "waiting": 56, "token_budget": 2048, "max_num_seqs": 256}
    shown = {"look": number, "interval": 0.25, "time": 0.25 * number, "model": "large", "block_size": 16}
    lists = {"requests": requests, "steps": steps, "events": events}
    return shown | counts | lists | {"num_blocks": 4096, "blocks": b64encode(blocks).decode()}


def test_a_large_pool_stays_smooth(browser: Browser, visit: Visit) -> None:
    """By Chromium's own trace: no task of the page's keeps its thread for more than a frame."""
    rng, num_looks = Random(1), 0
    looks = [json.dumps(large_look(number, rng)) for number in range(60)]

    def answer(route: Route) -> None:
        nonlocal num_looks
        route.fulfill(body=looks[num_looks % 60].replace(f'"look": {num_looks % 60}', f'"look": {num_looks}', 1))
        num_looks += 1

    def longest_task() -> float:
        """In milliseconds of the thread's own time, over a dozen looks."""
        browser.start_tracing(page=visit.page, categories=["toplevel", "devtools.timeline", "__metadata"])
        first = num_looks
        visit.page.mouse.move(300, 400)
        visit.page.evaluate("document.querySelector('#queue').scrollTop = 3000")
        wait_until(lambda: visit.page.wait_for_timeout(100) or num_looks > first + 12)
        trace = json.loads(browser.stop_tracing())["traceEvents"]
        threads = {(each["pid"], each["tid"]) for each in trace if each.get("args", {}).get("name") == "CrRendererMain"}
        tasks = [
            each["tdur"] / 1000
            for each in trace
            if each["name"] == "RunTask" or each["name"].endswith("::RunTask")
            if (each["pid"], each["tid"]) in threads and "tdur" in each
        ]
        assert len(tasks) > 100
        return max(tasks)

    visit.page.route("**/debug/pool?*", answer)
    visit.log_in()
    wait_until(lambda: visit.page.wait_for_timeout(100) or num_looks > 8)  # what is compiled once is compiled
    # What others do to caches and clock rates only makes a task longer.
    assert any(longest_task() < 16 for _ in range(4))
