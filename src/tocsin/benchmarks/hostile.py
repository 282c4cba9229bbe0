"""`tocsin bench hostile`: what honest subscribers notice of a hostile subscriber, publisher and webhook at once.

Measured: seconds from publishing to receiving, and resident memory of each server process, in phases with and without
the attackers in turn. Data cluster with Spark, coordinator, one broker, subscribers and attackers are real processes;
`shared/hostile_clients.py` says what the attackers do. All have valid tokens, and the attackers the lowest priority:
what the machine's cores spend on attacking is not a fault of the servers.
Checked by: every honest subscriber receives every record of its kind once, and the attackers did attack.
Prints: p95 with and without attackers, their ratio, the cores that each process used, also the attackers', and the
memory that it gained.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, temporary_folder
from tocsin.benchmarks.shared.hostile_clients import METHODS
from tocsin.benchmarks.shared.usage import server_processes, usage_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tocsin.client import Publisher, Subscriber

APPLICATION = """
CREATE STREAM DATASET Facts (id STRING, kind STRING, text STRING) KEY (id) RETAIN 1 DAYS;
CREATE CONTINUOUS CHANNEL Hot (kind STRING) AS SELECT f.* FROM NEW Facts f WHERE f.kind = :kind;
"""
SETTINGS = """
[cluster]
spark = { "spark.driver.memory" = "1g", "spark.driver.extraJavaOptions" = "-Xms1g -XX:+AlwaysPreTouch" }

[broker]
webhooks_private = true
"""
"""Spark's heap is in memory from the start: what it gains later is not the garbage collector's doing."""
KINDS = 5
PAUSE_S = 0.1
"""Pause between two published records."""
TEXT = "x" * 300


def hostile(
    subscribers: Annotated[int, typer.Option(help="Honest subscribers.")] = 20,
    warm_up_s: Annotated[float, typer.Option(help="Seconds before the first phase.")] = 30.0,
    phase_s: Annotated[float, typer.Option(help="Seconds of each phase.")] = 30.0,
    pairs: Annotated[int, typer.Option(help="Pairs of a phase without and a phase with attackers.")] = 3,
) -> dict[str, Any]:
    """Delivery times and memory beside a hostile subscriber, publisher and webhook."""
    return asyncio.run(measure(subscribers, warm_up_s, phase_s, pairs))


register = command(hostile, needs=("psutil",))


@dataclass(slots=True)
class _Phase:
    latencies_s: list[float] = field(default_factory=list)
    peaks_mib: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def cores(self) -> dict[str, float]:
        """Cores that each process used."""
        return {name: round(cpu_s / self.seconds, 3) for name, cpu_s in self.cpu_s.items()}


class _Person:
    """An honest subscriber; it records the delay of each record."""

    def __init__(self, subscriber: Subscriber, kind: str, run: _Run) -> None:
        self.subscriber = subscriber
        self.kind = kind
        self.received: list[str] = []
        self._run = run

    async def receive(self) -> None:
        from tocsin.client import Result

        async for notification in self.subscriber:
            if isinstance(notification, Result):
                name = notification.value["id"]
                self.received.append(name)
                sent_s, phase = self._run.sent[name]
                phase.latencies_s.append(time.perf_counter() - sent_s)


@dataclass(slots=True)
class _Run:
    sent: dict[str, tuple[float, _Phase]] = field(default_factory=dict)
    """Record → (when it was published, in which phase)."""
    ids: dict[str, list[str]] = field(default_factory=dict)
    """Kind → its records."""

    async def publish(self, publisher: Publisher, phase: _Phase, seconds: float) -> None:
        ends_s = time.perf_counter() + seconds
        while (now_s := time.perf_counter()) < ends_s:
            name, kind = f"r{len(self.sent)}", str(len(self.sent) % KINDS)
            self.sent[name] = (now_s, phase)
            self.ids.setdefault(kind, []).append(name)
            await publisher.publish("Facts", [{"id": name, "kind": kind, "text": TEXT}])
            await asyncio.sleep(max(0.0, now_s + PAUSE_S - time.perf_counter()))


async def measure(subscribers: int, warm_up_s: float, phase_s: float, pairs: int) -> dict[str, Any]:
    from tocsin.client import Publisher
    from tocsin.runtime.stack.stack import Stack, StackSettings

    with temporary_folder() as name:
        folder = Path(name)
        (folder / "settings.toml").write_text(SETTINGS, encoding="utf-8")
        stack = Stack(
            StackSettings(
                folder / "data",
                brokers=1,
                free_ports=True,
                settings=str(folder / "settings.toml"),
                broker={"log-level": "error"},
                coordinator={"log-level": "error"},
                cluster={"log-level": "error"},
            )
        )
        async with AsyncExitStack() as opened:
            opened.push_async_callback(stack.stop)
            announce("starting a data cluster, a coordinator and a broker")
            await stack.start()
            token = stack.admin_token()
            await _post(stack.cluster_url, token, "/v1/applications", {"text": APPLICATION})
            run = _Run()
            people = [await _connect(opened, stack, token, number, run) for number in range(subscribers)]
            publisher = await opened.enter_async_context(Publisher(stack.cluster_url, token))
            task = await _attackers_task(stack, token)
            (folder / "attack.json").write_text(json.dumps(task), encoding="utf-8")
            # The answer comes when the coordinator has compiled its policies, which takes 60 to 190 MiB once.
            await _post(stack.coordinator_url, token, "/v1/plans?dry_run=true", {"policy": "ldm"})
            announce(f"warming up for {warm_up_s:g} s")
            await run.publish(publisher, _Phase(), warm_up_s)
            quiet, attacked, counts = await _alternate(stack, publisher, run, folder, (phase_s, pairs))
            await _wait_for_all(people, run)
            return _figures(people, run, quiet, attacked, counts)


async def _alternate(
    stack: Any, publisher: Publisher, run: _Run, folder: Path, phases: tuple[float, int]
) -> tuple[_Phase, _Phase, dict[str, int]]:
    """Measure the phases of (seconds, pairs). Return the quiet ones, the attacked ones, and what the attackers did."""
    seconds, pairs = phases
    quiet, attacked = _Phase(), _Phase()
    counts: dict[str, int] = {}
    for number in range(pairs):
        announce(f"pair {number + 1} of {pairs}: without attackers")
        async with _usage(stack, quiet):
            await run.publish(publisher, quiet, seconds)
        announce(f"pair {number + 1} of {pairs}: with attackers")
        async with _attack(folder, counts) as attackers, _usage(stack, attacked, attackers):
            await run.publish(publisher, attacked, seconds)
        await run.publish(publisher, _Phase(), min(5.0, seconds))  # what the attack has left behind counts for neither
    return quiet, attacked, counts


async def _post(url: str, token: str, path: str, body: dict[str, Any]) -> Any:
    import httpx

    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        return (await client.post(path, json=body)).raise_for_status().json()


async def _connect(opened: AsyncExitStack, stack: Any, token: str, number: int, run: _Run) -> _Person:
    from tocsin.client import Subscriber

    subscriber = await opened.enter_async_context(
        Subscriber(stack.coordinator_url, user=f"person-{number}", token=token)
    )
    kind = str(number % KINDS)
    await subscriber.subscribe("Hot", {"kind": kind})
    person = _Person(subscriber, kind, run)
    task = asyncio.create_task(person.receive())
    opened.callback(task.cancel)
    return person


async def _attackers_task(stack: Any, token: str) -> dict[str, str]:
    """Addresses and tokens of the attackers: two users with their session tokens, and a publisher."""
    task = {"cluster": stack.cluster_url}
    for role, user in (("subscriber", "eve"), ("webhook", "trudy")):
        own = (await _post(stack.coordinator_url, token, "/v1/users", {"user": user}))["token"]
        placed = await _post(stack.coordinator_url, own, f"/v1/users/{user}/broker", {})
        task |= {"broker": placed["address"], f"{role}_token": placed["token"]}
    signed = {"subject": "mallory", "scopes": ["publish:Facts"], "days": 1}
    return task | {"publisher_token": (await _post(stack.coordinator_url, token, "/v1/tokens", signed))["token"]}


@asynccontextmanager
async def _attack(folder: Path, counts: dict[str, int]) -> AsyncIterator[int]:
    """Attack during the block, from the process with this id; add to `counts` what the attackers did."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tocsin.benchmarks.shared.hostile_clients", str(folder / "attack.json"))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    try:
        if (await process.stdout.readline()).strip() != b"attacking":
            raise RuntimeError("the attackers could not begin")
        yield process.pid
        process.stdin.close()
        for name, count in json.loads(await process.stdout.readline()).items():
            counts[name] = counts.get(name, 0) + count
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def _usage(stack: Any, phase: _Phase, attackers: int | None = None) -> AsyncIterator[None]:
    """Add up the CPU time of every process, Spark's included, and find the servers' highest resident memory."""
    import psutil

    servers = server_processes(stack)
    processes = servers if attackers is None else {**servers, "attackers": psutil.Process(attackers)}
    before = usage_of(processes)

    async def sample() -> None:
        while True:
            for name, process in servers.items():
                size_mib = process.memory_info().rss / 2**20
                phase.peaks_mib[name] = max(phase.peaks_mib.get(name, 0.0), size_mib)
            await asyncio.sleep(0.5)

    sampling = asyncio.create_task(sample())
    try:
        yield
    finally:
        sampling.cancel()
    after = usage_of(processes)
    phase.seconds += after.at_s - before.at_s
    for name, cpu_s in after.cpu_s.items():
        phase.cpu_s[name] = phase.cpu_s.get(name, 0.0) + cpu_s - before.cpu_s[name]


async def _wait_for_all(people: list[_Person], run: _Run) -> None:
    deadline_s = time.monotonic() + 120.0
    while any(len(person.received) < len(run.ids[person.kind]) for person in people) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.2)


def _figures(
    people: list[_Person], run: _Run, quiet: _Phase, attacked: _Phase, counts: dict[str, int]
) -> dict[str, Any]:
    lost = sum(len(set(run.ids[person.kind]) - set(person.received)) for person in people)
    repeated = sum(len(person.received) - len(set(person.received)) for person in people)
    before_s, during_s = _p95(quiet.latencies_s), _p95(attacked.latencies_s)
    gained = {name: round(peak - quiet.peaks_mib[name], 1) for name, peak in attacked.peaks_mib.items()}
    attacks = (*METHODS, "webhook calls")
    return {
        "quiet_p95_s": before_s,
        "attacked_p95_s": during_s,
        "ratio": during_s / before_s,
        "quiet_cores": quiet.cores,
        "attacked_cores": attacked.cores,
        "gained_mib": gained,
        "most_gained_mib": max(gained.values()),
        "attacks": counts,
        "deliveries": len(quiet.latencies_s) + len(attacked.latencies_s),
        "lost": lost,
        "repeated": repeated,
        "correct": lost == repeated == 0 and all(counts.get(name) for name in attacks),
    }


def _p95(latencies_s: list[float]) -> float:
    return sorted(latencies_s)[int(0.95 * len(latencies_s))]
