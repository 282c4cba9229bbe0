"""`tocsin bench live`: a continuous channel that joins new records with the positions of moving people.

Each person has a row in a KEYED dataset and a subscription to the reports within 1 km. While reports arrive, people
move, subscribe and unsubscribe, all at steady rates.
Timed: each report with results, from the time it is due at the gateway until a broker has pulled its results.
Compared with: a tenth of the people on a tenth of the area.
Checked by: DuckDB, for the people that neither move nor unsubscribe (a tenth), on a sample of the reports. For all
others the position at the moment of an execution is not known.
Prints: p50 and p95 in seconds, the growth of p50 from a tenth, and the highest resident memory of all processes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import announce, command, publish, temporary_folder
from tocsin.benchmarks.shared.near_pairs import pairs_within, spread
from tocsin.benchmarks.shared.processes import MemoryWatch
from tocsin.benchmarks.shared.running_cluster import pulling, running_cluster

APPLICATION = """
CREATE STREAM DATASET Reports (report_id STRING, lat DOUBLE, lon DOUBLE, message STRING) KEY (report_id);
CREATE KEYED DATASET People (person STRING, lat DOUBLE, lon DOUBLE, at TIMESTAMP) KEY (person) ORDER BY at;
CREATE CONTINUOUS CHANNEL NearMe (person STRING) AS
  SELECT r.report_id, p.person FROM NEW Reports r JOIN People p ON near(r.lat, r.lon, p.lat, p.lon, 1000)
  WHERE p.person = :person;
"""
RADIUS_M = 1_000.0
PEOPLE_PER_KM2 = 10.0
"""About 31 people are within 1 km of a report."""
STILL = 10
"""Every tenth person neither moves nor unsubscribes."""
TURN_S = 0.1
"""Pause between two requests of each kind."""
CHUNK = 20_000
SAMPLE = 500
"""Reports that DuckDB checks."""
LAST_S = 120.0
"""How long the last results may take."""
QUIET_S = 5.0
"""After this time without results, all reports have been matched."""


def live(
    subscriptions: Annotated[int, typer.Option(help="People, each with a position and a subscription.", min=100)] = (
        1_000_000
    ),
    records_per_s: Annotated[int, typer.Option(help="Reports each second.")] = 100,
    moves_per_s: Annotated[int, typer.Option(help="Updates of positions each second.")] = 1_000,
    changes_per_s: Annotated[int, typer.Option(help="Subscribes each second, and as many unsubscribes.")] = 100,
    seconds: Annotated[float, typer.Option(help="How long reports are measured.")] = 60.0,
    warm_up_s: Annotated[float, typer.Option(help="How long the load runs before.")] = 60.0,
) -> dict[str, Any]:
    """Delivery times of a channel that joins with a million moving people."""
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    rates = Rates(records_per_s, moves_per_s, changes_per_s, seconds, warm_up_s)
    small = asyncio.run(measure(subscriptions // 10, rates))
    with MemoryWatch() as memory:
        large = asyncio.run(measure(subscriptions, rates))
    return {
        **large,
        "subscriptions": subscriptions,
        "rss_mib": memory.peak_mib,
        "tenth_s_p50": small["publish_to_result_s_p50"],
        "growth": large["publish_to_result_s_p50"] / small["publish_to_result_s_p50"],
        "correct": large["correct"] and small["correct"],
    }


register = command(live, needs=("psutil", "duckdb"))


@dataclass(frozen=True, slots=True)
class Rates:
    records_per_s: int
    moves_per_s: int
    changes_per_s: int
    seconds: float
    warm_up_s: float


async def measure(people: int, rates: Rates) -> dict[str, Any]:
    from tocsin.model.ids import BrokerId

    with temporary_folder() as root:
        async with running_cluster(root, APPLICATION) as cluster:
            world = World(cluster, people)
            took_s = await asyncio.to_thread(world.fill)
            announce(f"{people:,} people placed and subscribed in {took_s:.0f} s")
            for dataset in ("Reports", "People"):
                await asyncio.to_thread(cluster.datasets.start_ingestion, dataset)
            async with pulling(cluster, BrokerId("bench"), world.receive):
                ends_s = time.perf_counter() + rates.warm_up_s + rates.seconds
                await asyncio.gather(
                    _every_turn(ends_s, lambda due_s: world.report(round(rates.records_per_s * TURN_S), due_s)),
                    _every_turn(ends_s, lambda _: world.move(round(rates.moves_per_s * TURN_S))),
                    _every_turn(ends_s, lambda _: world.change(round(rates.changes_per_s * TURN_S))),
                )
                await world.wait()
            correct = await asyncio.to_thread(world.is_correct)
            latencies_s = world.latencies_s(rates.warm_up_s)
    p50_s, p95_s = statistics.median(latencies_s), latencies_s[int(0.95 * len(latencies_s))]
    announce(f"{people:,} people: p50 {p50_s:.2f} s, p95 {p95_s:.2f} s, {'correct' if correct else 'WRONG'}")
    return {
        "publish_to_result_s_p50": p50_s,
        "publish_to_result_s_p95": p95_s,
        "publish_to_accepted_s_p50": statistics.median(world.accepted_s),
        "reports": len(world.sent_at),
        "results": world.results,
        "moved": world.moved,
        "changed": world.changed,
        "filled_s": took_s,
        "correct": correct,
    }


async def _every_turn(ends_s: float, act: Callable[[float], Awaitable[None]]) -> None:
    """Call `act` with the time at which it is due, at a steady rate until `ends_s`. Late calls follow each other."""
    due_s = time.perf_counter()
    while due_s < ends_s:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        await act(due_s)
        due_s += TURN_S


@dataclass(slots=True)
class World:
    """The people, the load that they and the reports make, and the results that arrived."""

    cluster: Any
    people: int
    sent_at: dict[int, float] = field(default_factory=dict)
    received_at: dict[int, float] = field(default_factory=dict)
    accepted_s: list[float] = field(default_factory=list)
    """Seconds until the gateway had accepted the reports of each turn."""
    results: int = 0
    moved: int = 0
    changed: int = 0
    _still: dict[int, set[int]] = field(default_factory=dict)
    """Report → the people that do not move and received it."""
    _repeated: int = 0
    _places: Any = None
    _events: list[tuple[float, float]] = field(default_factory=list)
    _generator: Any = None
    _commits: dict[str, Any] = field(default_factory=dict)
    _absent: list[int] = field(default_factory=list)
    """People without a subscription."""

    def fill(self) -> float:
        """Publish all positions and subscribe all people; return the seconds."""
        import numpy as np

        from tocsin.model.ids import BrokerId

        began_s = time.perf_counter()
        self._generator = np.random.default_rng(self.people)
        self._places = spread(self._generator, self.people, self._side_km)
        for start in range(0, self.people, CHUNK):
            numbers = range(start, min(start + CHUNK, self.people))
            publish(self.cluster, "People", self._positions(list(numbers)))
            self.cluster.subscribe("NearMe", [{"person": f"p{number}"} for number in numbers], BrokerId("bench"))
        return time.perf_counter() - began_s

    @property
    def _side_km(self) -> float:
        return float((self.people / PEOPLE_PER_KM2) ** 0.5)

    def _positions(self, numbers: list[int]) -> list[dict[str, Any]]:
        at = datetime.now(UTC).isoformat()
        places = self._places[numbers].tolist()
        return [
            {"person": f"p{number}", "lat": lat, "lon": lon, "at": at}
            for number, (lat, lon) in zip(numbers, places, strict=True)
        ]

    def _movers(self, count: int) -> list[int]:
        numbers = self._generator.integers(0, self.people // STILL, count) * STILL
        return [int(number) for number in numbers + self._generator.integers(1, STILL, count)]

    # -- the load ------------------------------------------------------------------------------------------------------

    async def report(self, count: int, due_s: float) -> None:
        """Publish reports; each counts from the time it is due, also if the gateway delays the request."""
        first = len(self._events)
        events = spread(self._generator, count, self._side_km).tolist()
        self._events += [(lat, lon) for lat, lon in events]
        self.sent_at |= dict.fromkeys(range(first, first + count), due_s)
        records = [
            {"report_id": str(first + index), "lat": lat, "lon": lon, "message": "m" * 200}
            for index, (lat, lon) in enumerate(events)
        ]
        await self._store("Reports", records)
        self.accepted_s.append(time.perf_counter() - due_s)

    async def move(self, count: int) -> None:
        """Move people by about 100 m."""
        numbers = sorted(set(self._movers(count)))
        self._places[numbers] += (self._generator.random((len(numbers), 2)) - 0.5) * 0.002
        await self._store("People", self._positions(numbers))
        self.moved += len(numbers)

    async def change(self, count: int) -> None:
        """Unsubscribe some people, and subscribe those that an earlier call unsubscribed."""
        back, self._absent = self._absent, sorted(set(self._movers(count)) - set(self._absent))
        await asyncio.to_thread(self._change, self._absent, back)
        self.changed += len(self._absent)

    def _change(self, leaving: list[int], coming: list[int]) -> None:
        from tocsin.model.ids import BrokerId
        from tocsin.model.subscription import subscription_id

        channel = self.cluster.channel("NearMe").name
        ids = [subscription_id(channel, (f"p{number}",)) for number in leaving]
        self.cluster.unsubscribe("NearMe", ids, BrokerId("bench"))
        self.cluster.subscribe("NearMe", [{"person": f"p{number}"} for number in coming], BrokerId("bench"))

    async def _store(self, dataset: str, records: list[dict[str, Any]]) -> None:
        import msgspec

        from tocsin.cluster.feed.gateway import Accepted, RecordForm
        from tocsin.cluster.server.group_commit import GroupCommit

        commit = self._commits.get(dataset)
        if commit is None:
            commit = self._commits[dataset] = GroupCommit(self.cluster.gateway(dataset))
        outcome = await commit.store(msgspec.json.encode(records), RecordForm.JSON, None)
        if not isinstance(outcome, Accepted) or outcome.refused_total:
            raise RuntimeError(f"the gateway refused benchmark records: {outcome}")

    # -- the results ---------------------------------------------------------------------------------------------------

    def receive(self, _channel: str, results: list[Any], now_s: float) -> None:
        self.results += len(results)
        for result in results:
            report, person = int(result.result["report_id"]), int(result.result["person"][1:])
            self.received_at.setdefault(report, now_s)
            if person % STILL == 0:
                people = self._still.setdefault(report, set())
                self._repeated += person in people
                people.add(person)

    async def wait(self) -> None:
        """Wait until the last reports were matched: no result has arrived for some seconds, or the limit has passed."""
        deadline_s = time.perf_counter() + LAST_S
        before = -1
        while (len(self.received_at) < 0.9 * len(self.sent_at) or self.results > before) and (
            time.perf_counter() < deadline_s
        ):
            before = self.results
            await asyncio.sleep(QUIET_S)

    def is_correct(self) -> bool:
        """Compare a sample of the reports with DuckDB, for the people that do not move."""
        import numpy as np

        chosen = sorted(
            self._generator.choice(len(self._events), min(SAMPLE, len(self._events)), replace=False).tolist()
        )
        events = np.array([self._events[report] for report in chosen])
        expected: dict[int, set[int]] = {}
        for person, event in pairs_within(self._places[::STILL], events, RADIUS_M):
            expected.setdefault(chosen[event], set()).add(person * STILL)
        received = {report: self._still[report] for report in chosen if report in self._still}
        return expected == received and not self._repeated

    def latencies_s(self, warm_up_s: float) -> list[float]:
        from_s = min(self.sent_at.values()) + warm_up_s
        pairs = ((at_s, self.sent_at[report]) for report, at_s in self.received_at.items())
        return sorted(at_s - sent_s for at_s, sent_s in pairs if sent_s >= from_s)
