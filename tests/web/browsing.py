"""A real Chromium for tests of the page. It records console errors and the hosts that the page contacts."""

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
TIMEOUT_MS = 15_000


class Tab:
    """A page, its console errors and warnings, and the hosts that it contacted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.on("websocket", lambda socket: self.hosts.add(urlsplit(socket.url).netloc))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def state(self, expression: str) -> Any:
        """The value of a JavaScript expression over `state`, the page's state."""
        return self.page.evaluate(f"() => {{ const state = tocsin.state; return {expression}; }}")

    def until(self, expression: str, timeout_ms: float = TIMEOUT_MS) -> Any:
        """Wait until a JavaScript expression over `state` is true."""
        condition = f"() => {{ const state = tocsin.state; return {expression}; }}"
        return self.page.wait_for_function(condition, timeout=timeout_ms).json_value()


def chromium() -> Iterator[Browser]:
    """The system's Chromium; tests are skipped if there is none."""
    paths = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    path = next(filter(None, paths), None)
    if path is None:
        pytest.skip("no Chromium on this machine: `make system` installs it")
    # Chromium's sandbox refuses to run as root, as in containers.
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
