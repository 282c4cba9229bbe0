from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.web.browsing import chromium
from tests.web.city_server import CityServer, served
from tests.web.made_up_city import MadeUpCity


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A module's: while playwright runs, nothing else in this thread may run an event loop, and other modules do."""
    yield from chromium()


@pytest.fixture(scope="module")
def city() -> Iterator[CityServer]:
    """Four brokers and 400 people, five seconds a second."""
    with served(CityServer(MadeUpCity(400), pace_s=0.2)) as server:
        yield server
