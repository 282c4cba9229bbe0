from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.web.browsing import chromium
from tests.web.city_server import CityServer, served
from tests.web.random_city import RandomCity


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser, per module: no other event loop can run in this thread while playwright runs."""
    yield from chromium()


@pytest.fixture(scope="module")
def city() -> Iterator[CityServer]:
    """Four brokers and 400 people, five times faster than real time."""
    with served(CityServer(RandomCity(400), pace_s=0.2)) as server:
        yield server
