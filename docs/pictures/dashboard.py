"""Takes the pictures of the dashboard (``make screenshots``): a server under load, seen in Chromium.

    python docs/pictures/dashboard.py [FOLDER]

FOLDER: where the pictures go; docs/pictures by default.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Page, async_playwright

HERE = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
KEY = "pictures"
SYSTEM = "You are the librarian of a small town. You answer kindly, you know every book, and you never guess. " * 5
TOPICS = (
    "bread",
    "rain",
    "paper",
    "rivers",
    "stars",
    "cats",
    "bridges",
    "winter",
    "maps",
    "clocks",
    "trees",
    "islands",
)
VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 1000}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 1000}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 320, "height": 700}, "color_scheme": "light", "device_scale_factor": 2},
}


@contextmanager
def running_server(*flags: str) -> Iterator[str]:
    """A server of the built-in model; its address."""
    command = [sys.executable, "-m", "octavo", "serve", "--port", "0", "--admin-key", KEY, *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = ""
        for line in process.stderr:
            address = address or "".join(re.findall(r"listening at (http://[^; ]+)", line))
            if " serves " in line:
                break
        try:
            yield address
        finally:
            process.terminate()
            process.communicate()


async def ask(client: httpx.AsyncClient, number: int) -> None:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Tell me about books on {TOPICS[number % len(TOPICS)]}, number {number}."},
    ]
    body = {"messages": messages, "max_tokens": 40 + 37 * number % 160, "n": 1 + (number % 5 == 0), "temperature": 0.7}
    await client.post("/v1/chat/completions", json=body)


@asynccontextmanager
async def load(address: str, num_clients: int = 14) -> AsyncIterator[None]:
    """So many clients ask one question after another."""
    async with httpx.AsyncClient(base_url=address, timeout=600) as client:
        prompt = {"role": "system", "content": SYSTEM}
        headers = {"Authorization": f"Bearer {KEY}"}
        await client.post("/admin/pins", json={"messages": [prompt], "ttl": 900}, headers=headers)
        numbers = iter(range(10**6))

        async def go_on() -> None:
            while True:
                await ask(client, next(numbers))

        tasks = [asyncio.create_task(go_on()) for _ in range(num_clients)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def open_page(page: Page, address: str) -> None:
    await page.goto(f"{address}/dashboard")
    await page.fill("#key", KEY)
    await page.click("button")
    await page.wait_for_selector("#state[data-state=live]")


async def take(address: str, folder: Path) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        pages = {}
        for name, options in VIEWS.items():
            pages[name] = await (await browser.new_context(**options)).new_page()
            await open_page(pages[name], address)
        await pages["light"].click("#send")
        await asyncio.sleep(20)
        await pages["dark"].click("#send")
        await asyncio.sleep(4)
        for name, page in pages.items():
            box = await page.locator(".marks").bounding_box()
            assert box is not None
            await page.locator(".marks").click(position={"x": 34, "y": 12})
            await asyncio.sleep(1)
            await page.screenshot(path=folder / f"dashboard-{name}.png", full_page=name == "phone")
        await browser.close()


async def main(folder: Path) -> None:
    with running_server("--num-blocks", "768", "--max-num-seqs", "16", "--dashboard-text") as address:
        async with load(address):
            await take(address, folder)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(target))
