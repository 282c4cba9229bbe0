"""`tocsin status`: show brokers, sessions, subscriptions and loads, as the coordinator knows them."""

from __future__ import annotations

from typing import Any

import typer

from tocsin.cli.console import DEFAULT_COORDINATOR_URL, AsJson, CoordinatorUrl, Token, failing_on_errors, show, table


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(url: CoordinatorUrl = DEFAULT_COORDINATOR_URL, token: Token = None, as_json: AsJson = False) -> None:
    """Show the network: brokers, sessions, subscriptions, loads."""
    from tocsin.cli.connection import ask, connect_coordinator

    with failing_on_errors(as_json), connect_coordinator(url, token) as client:
        reply: dict[str, Any] = ask(client, "GET", "/v1/status")
    show(as_json, reply, lambda: _print(reply))


def _print(reply: dict[str, Any]) -> None:
    titles = ("broker", "state", "subscribers", "online", "FE", "BE", "in/s", "out/s", "load/s", "p95", "address")
    table(titles, [_row(broker) for broker in reply["brokers"]])
    print(
        f"\n{reply['subscribers']:,} subscribers, {reply['online']:,} online, "
        f"{reply['frontend_subscriptions']:,} subscriptions, load {_size(reply['load_bytes_per_s'])}/s, "
        f"cov {reply['cov']:.3f}, {reply['migrations']:,} migrations in progress, {reply['moves_waiting']:,} waiting"
    )


def _row(broker: dict[str, Any]) -> list[object]:
    counts = ("subscribers", "online", "frontend_subscriptions", "backend_subscriptions")
    rates = ("in_bytes_per_s", "out_bytes_per_s", "load_bytes_per_s")
    p95_s = broker["delivery_s_p95"]
    return [
        broker["broker"],
        broker["state"],
        *(f"{broker[name]:,}" for name in counts),
        *(_size(broker[name]) for name in rates),
        "" if p95_s is None else f"{p95_s * 1000:.0f} ms",
        broker["address"],
    ]


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"
