"""The table of cases, and the runner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.end_to_end.mqtt_conformance.client import ServerUnderTest
from tocsin.broker.mqtt.packets import V5, V311

Check = Callable[[ServerUnderTest], Awaitable[None]]
BOTH = (V311, V5)
ONLY_5 = (V5,)


@dataclass(frozen=True)
class Case:
    name: str
    source: str
    """`paho`, a normative statement or a section of the specification, or `should` and a section."""
    version: int
    check: Check


CASES: list[Case] = []


def case(source: str, versions: tuple[int, ...] = ONLY_5) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        name = check.__name__.replace("_", "-")
        CASES.extend(Case(name, source, version, check) for version in versions)
        return check

    return add


async def run_all(host: str, port: int, username: str, password: str, at_once: int = 6) -> dict[str, str]:
    """Case → `ok`, or why it failed."""
    slots = asyncio.Semaphore(at_once)

    async def run(each: Case) -> tuple[str, str]:
        async with slots:
            tester = ServerUnderTest(host, port, username, password, each.name, each.version)
            try:
                async with asyncio.timeout(60):
                    await each.check(tester)
                outcome = "ok"
            except (Exception, AssertionError) as error:
                outcome = f"{type(error).__name__} {error}".strip()[:200]
            finally:
                await tester.close()
            return f"{each.name} ({'5.0' if each.version == V5 else '3.1.1'}; {each.source})", outcome

    return dict(await asyncio.gather(*(run(each) for each in CASES)))
