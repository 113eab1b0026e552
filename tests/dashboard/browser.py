"""The page in real headless Chromium: what the tests of it share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.debian import debian_program
from tests.support.waiting import PATIENCE

ADMIN = "admin-key"
ARTIFACTS = Path(os.environ.get("OCTAVO_ARTIFACTS", Path(__file__).parents[2] / "artifacts"))
"""Where pictures of the page are left; not in git."""


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = debian_program("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page and what it has asked for and complained of."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda each: self.complaints.append(each.text) if each.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def log_in(self) -> Page:
        self.page.goto(f"{self.url}/dashboard")
        self.page.fill("#key", ADMIN)
        self.page.click("button")
        self.page.wait_for_selector("#state[data-state=live]")
        # That a form comes with 401 stands in the console, too.
        self.complaints = [text for text in self.complaints if "401" not in text]
        return self.page

    def keep_picture(self, name: str, **options: Any) -> None:
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=ARTIFACTS / f"{name}.png", **options)
