"""`tocsin demo`: the emergency city on a data cluster of its own, over the real API, with a report at the end.

Starts the server on a free port and a temporary root, applies the emergency application, lets a crowd move and things
happen, subscribes for everybody as a broker would, and pulls each result once. The report counts what was published,
delivered, lost and repeated.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

BROKER = "demo"
APPLICATION = Path("examples/emergency/emergency.sql")
REPORTS_PER_S = 10_000 / 1_800
"""About 10,000 reports in 30 minutes [BAD §6.1.2]."""
_TIMED_CHANNEL = "SevereNearMe"
_COUNTED_CHANNEL = "EmergenciesOfType"


def register(app: typer.Typer) -> None:
    @app.command("demo")
    def demo(
        subscribers: int = typer.Option(400, help="People in the city."),
        minutes: float = typer.Option(0.75, help="How long things happen."),
        seed: int = typer.Option(7, help="Another seed is another city day."),
        application: Path = typer.Option(APPLICATION, help="The application file."),
        as_json: bool = typer.Option(False, "--json", help="End with one JSON object."),
    ) -> None:
        """An emergency city from publisher to result, on this machine, with a report."""
        source = application if application.exists() else _in_checkout(application)
        if source is None:
            typer.echo(f"there is no {application}; name the application file with --application", err=True)
            raise typer.Exit(2)
        from tocsin.runtime.logs import configure_logs

        configure_logs("error")
        report = asyncio.run(_Demo(subscribers, minutes, seed, source).run())
        _show(report)
        if as_json:
            print(json.dumps(report))
        if report["lost"] or report["repeated"]:
            raise typer.Exit(1)


def _in_checkout(application: Path) -> Path | None:
    import tocsin

    path = Path(tocsin.__file__).parents[2] / application
    return path if path.exists() else None


class _Demo:
    def __init__(self, people: int, minutes: float, seed: int, application: Path) -> None:
        import numpy as np

        from tocsin.sim.crowd import Crowd

        self._crowd = Crowd(people, np.random.default_rng(seed))
        self._seconds = minutes * 60
        self._application = application
        self._published: list[dict[str, Any]] = []
        self._cursors: dict[str, dict[str, str]] = {}
        self._received: Counter[tuple[str, str]] = Counter()
        self._by_channel: Counter[str] = Counter()
        self._latencies_s: list[float] = []
        self._kinds_wanted: dict[str, str] = {}

    async def run(self) -> dict[str, Any]:
        import httpx

        from tocsin.runtime.cluster_server import ClusterServer
        from tocsin.runtime.settings import ClusterProcessSettings

        up: asyncio.Future[tuple[str, str | None]] = asyncio.get_running_loop().create_future()
        with tempfile.TemporaryDirectory(prefix="tocsin-demo-") as root:
            _say("starting Spark and the data cluster")
            server = ClusterServer(
                ClusterProcessSettings(root=root, port=0, token_file=False), lambda *known: up.set_result(known)
            )
            serving = asyncio.create_task(server.run())
            try:
                await asyncio.wait((serving, up), return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    await serving
                address, token = await up
                headers = {"Authorization": f"Bearer {token}"}
                async with httpx.AsyncClient(base_url=address, headers=headers, timeout=120) as client:
                    return await self._day(client, address)
            finally:
                server.stop()
                with suppress(asyncio.CancelledError):
                    await serving

    async def _day(self, client: Any, address: str) -> dict[str, Any]:
        applied = await client.post(
            "/v1/applications",
            json={"text": self._application.read_text(), "folder": str(self._application.parent.absolute())},
        )
        applied.raise_for_status()
        _say(f"{address}: {len(applied.json()['changes'])} datasets and channels created from {self._application.name}")
        await self._publish(client, "UserLocations", self._crowd.locations(_now()))
        frontend, backend = await self._subscribe(client)
        _say(f"{frontend:,} frontend subscriptions are {backend:,} backend subscriptions")
        listening = asyncio.create_task(self._listen(client))
        await self._things_happen(client)
        await self._drain(client)
        listening.cancel()
        channels = (await client.get("/v1/channels")).json()["channels"]
        return self._report(channels, frontend, backend)

    async def _subscribe(self, client: Any) -> tuple[int, int]:
        wishes = self._crowd.wishes()
        by_channel: dict[str, list[dict[str, Any]]] = {}
        for wish in wishes:
            by_channel.setdefault(wish.channel, []).append(wish.parameters)
        for channel, parameters in by_channel.items():
            answer = await client.post(
                "/v1/subscriptions", json={"channel": channel, "parameters": parameters, "broker": BROKER}
            )
            answer.raise_for_status()
            held = self._cursors.setdefault(channel, {})
            for values, made in zip(parameters, answer.json(), strict=True):
                held[made["id"]] = made["cursor"]
                if channel == _COUNTED_CHANNEL:
                    self._kinds_wanted[made["id"]] = values["kind"]
        return len(wishes), sum(len(held) for held in self._cursors.values())

    async def _publish(self, client: Any, dataset: str, records: list[dict[str, Any]]) -> None:
        answer = await client.post(f"/v1/datasets/{dataset}/records", json=records)
        answer.raise_for_status()

    async def _things_happen(self, client: Any) -> None:
        began = time.monotonic()
        due = 0.0
        for second in range(int(self._seconds)):
            await asyncio.sleep(max(0.0, began + second - time.monotonic()))
            self._crowd.step(1.0)
            due += REPORTS_PER_S
            reports = self._crowd.emergencies(int(due), _now())
            due -= len(reports)
            self._published += reports
            await self._publish(client, "UserLocations", self._crowd.locations(_now()))
            await self._publish(client, "EmergencyReports", reports)
            if second % 5 == 4:
                received = sum(self._received.values())
                _say(f"{second + 1:4} s  {len(self._published):6,} reports published  {received:8,} results received")

    async def _listen(self, client: Any) -> None:
        """As a broker: hear which subscriptions have news and pull those, once."""
        async with client.stream("GET", f"/v1/brokers/{BROKER}/announcements?after=0", timeout=None) as stream:
            kind = ""
            async for line in stream.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data" and kind == "execution":
                    await self._pull(client, json.loads(value))

    async def _pull(self, client: Any, announced: dict[str, Any]) -> None:
        channel = announced["channel"]
        held = self._cursors[channel]
        wanted = {news["id"]: held[news["id"]] for news in announced["subscriptions"]}
        answer = await client.post("/v1/results", json={"channel": channel, "subscriptions": wanted})
        answer.raise_for_status()
        now = datetime.now(UTC)
        for line in answer.text.splitlines():
            row = json.loads(line)
            held[row["subscription"]] = row["cursor"]
            self._received[row["subscription"], row["result"]["report_id"]] += 1
            self._by_channel[channel] += 1
            if channel == _TIMED_CHANNEL:
                reported = datetime.fromisoformat(row["result"]["reported_at"])
                self._latencies_s.append((now - reported).total_seconds())

    async def _drain(self, client: Any) -> None:
        """Run every channel once more instead of waiting for its next tick, and let the last announcements arrive."""
        _say("the day is over: running every channel once more")
        await asyncio.sleep(2.0)
        for channel in self._cursors:
            (await client.post(f"/v1/channels/{channel}/execute")).raise_for_status()
        expected = self._expected()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and any(key not in self._received for key in expected):
            await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)

    def _expected(self) -> set[tuple[str, str]]:
        """What the channel that can be checked by hand must have given: every report to whoever wants its kind."""
        wanted = {kind: subscription for subscription, kind in self._kinds_wanted.items()}
        return {(wanted[report["kind"]], report["report_id"]) for report in self._published if report["kind"] in wanted}

    def _report(self, channels: list[dict[str, Any]], frontend: int, backend: int) -> dict[str, Any]:
        expected = self._expected()
        latencies = sorted(self._latencies_s)
        return {
            "published": len(self._published),
            "received": sum(self._received.values()),
            "lost": sum(1 for key in expected if key not in self._received),
            "repeated": sum(count - 1 for count in self._received.values()),
            "frontend_subscriptions": frontend,
            "backend_subscriptions": backend,
            "severe_near_me_s_p50": latencies[len(latencies) // 2] if latencies else None,
            "severe_near_me_s_p95": latencies[int(len(latencies) * 0.95)] if latencies else None,
            "channels": [
                {
                    "name": channel["name"],
                    "period_s": channel["period_s"],
                    "subscriptions": channel["subscriptions"],
                    "executions": channel["executions"],
                    "missed_ticks": channel["missed_ticks"],
                    "results": self._by_channel[channel["name"]],
                    "last_duration_s": channel["last_duration_s"],
                }
                for channel in channels
            ],
        }


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="The emergency city", title_justify="left")
    for name in ("channel", "period", "BE subscriptions", "executions", "missed", "results", "last run"):
        table.add_column(name, justify="left" if name == "channel" else "right")
    for channel in report["channels"]:
        period, last = channel["period_s"], channel["last_duration_s"]
        table.add_row(
            channel["name"],
            "as it happens" if period is None else f"{period:g} s",
            f"{channel['subscriptions']:,}",
            f"{channel['executions']:,}",
            str(channel["missed_ticks"]),
            f"{channel['results']:,}",
            "–" if last is None else f"{last:.2f} s",
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print(
        f"{report['published']:,} reports published, {report['received']:,} results received, "
        f"{report['lost']} lost, {report['repeated']} repeated; "
        f"{report['frontend_subscriptions']:,} frontend and {report['backend_subscriptions']:,} backend subscriptions"
    )
    if report["severe_near_me_s_p50"] is not None:
        console.print(
            f"SevereNearMe, from publisher to broker: p50 {report['severe_near_me_s_p50']:.2f} s, "
            f"p95 {report['severe_near_me_s_p95']:.2f} s"
        )
