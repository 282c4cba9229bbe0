"""`tocsin status`: brokers, sessions, subscriptions and loads, as the coordinator sees them."""

from __future__ import annotations

from typing import Any

import typer

from tocsin.cli.options import DEFAULT_COORDINATOR_URL, AsJson, CoordinatorUrl, Token
from tocsin.cli.output import fail, table, tell
from tocsin.wire.errors import TocsinError


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(url: CoordinatorUrl = DEFAULT_COORDINATOR_URL, token: Token = None, as_json: AsJson = False) -> None:
    """Show the network: brokers, sessions, subscriptions, loads."""
    from tocsin.cli.connection import ask, connect_coordinator

    try:
        with connect_coordinator(url, token) as client:
            found: dict[str, Any] = ask(client, "GET", "/v1/status")
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    tell(as_json, found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    titles = ("broker", "state", "subscribers", "online", "FE", "BE", "in/s", "out/s", "load/s", "p95", "address")
    table(titles, [_row(broker) for broker in found["brokers"]])
    print(
        f"\n{found['subscribers']:,} subscribers, {found['online']:,} online, "
        f"{found['frontend_subscriptions']:,} subscriptions, load {size(found['load_bytes_per_s'])}/s, "
        f"cov {found['cov']:.3f}, {found['migrations']:,} migrations under way, {found['moves_waiting']:,} waiting"
    )


def _row(broker: dict[str, Any]) -> tuple[object, ...]:
    p95_s = broker["delivery_s_p95"]
    return (
        broker["broker"], broker["state"], f"{broker['subscribers']:,}", f"{broker['online']:,}",
        f"{broker['frontend_subscriptions']:,}", f"{broker['backend_subscriptions']:,}",
        size(broker["in_bytes_per_s"]), size(broker["out_bytes_per_s"]), size(broker["load_bytes_per_s"]),
        "" if p95_s is None else f"{p95_s * 1000:.0f} ms", broker["address"],
    )  # fmt: skip


def size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"
