"""A real Chromium for tests of the page: what it complains about and whom it calls is noted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

DESK = {"width": 1366, "height": 768}
PHONE = {"width": 390, "height": 844}
PATIENCE_MS = 15_000


class Tab:
    """A page, and everything it did that a good page does not do."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("websocket", lambda socket: self.hosts.add(urlsplit(socket.url).netloc))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location.get('url')})")

    def state(self, expression: str) -> Any:
        """Of the page's state, as JavaScript."""
        return self.page.evaluate(f"() => {{ const state = tocsin.state; return {expression}; }}")

    def until(self, expression: str, timeout_ms: float = PATIENCE_MS) -> Any:
        """Until it is true of the page's state."""
        wanted = f"() => {{ const state = tocsin.state; return {expression}; }}"
        return self.page.wait_for_function(wanted, timeout=timeout_ms).json_value()


def chromium() -> Iterator[Browser]:
    """The system's; tests are skipped where there is none."""
    path = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if path is None:
        pytest.skip("no Chromium on this machine: `make system` installs it")
    # Chromium's sandbox refuses to run as root, which is what containers are.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@contextmanager
def tab(browser: Browser, **options: Any) -> Iterator[Tab]:
    context = browser.new_context(**{"viewport": DESK, "locale": "en-GB", "timezone_id": "UTC", **options})
    yield Tab(context.new_page())
    context.close()
