"""`tocsin balance`: how the brokers are kept even, and changing that while it runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tocsin.cli.options import DEFAULT_COORDINATOR_URL, AsJson, CoordinatorUrl, Token
from tocsin.cli.output import fail, tell
from tocsin.wire.errors import TocsinError


def register(app: typer.Typer) -> None:
    app.command("balance")(balance)


def balance(
    once: Annotated[
        bool, typer.Option("--once", help="Plan and carry it out now, whether it runs by itself or not.")
    ] = False,
    on: Annotated[bool | None, typer.Option("--on/--off", help="Let it run by itself, or not.")] = None,
    period_s: Annotated[float | None, typer.Option(help="Between rounds.")] = None,
    scheme: Annotated[str | None, typer.Option(help="Dynamic migration: ldm, sdm, affinity or none.")] = None,
    shuffle: Annotated[str | None, typer.Option(help="gsh, affinity or none.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Migration above this cov.")] = None,
    beta: Annotated[float | None, typer.Option(help="Migration above this mean load, in bytes/s.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Shuffle above this cov.")] = None,
    theta: Annotated[float | None, typer.Option(help="Shuffle above this mean load, in bytes/s.")] = None,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show how balancing is set and what it last did; change it, or run it once."""
    from tocsin.cli.connection import ask, connect_coordinator

    wanted: dict[str, Any] = {
        "on": on, "period_s": period_s, "scheme": scheme, "shuffle": shuffle, "alpha": alpha,
        "beta_bytes_per_s": beta, "gamma": gamma, "theta_bytes_per_s": theta,
    }  # fmt: skip
    changes = {name: value for name, value in wanted.items() if value is not None}
    try:
        with connect_coordinator(url, token) as client:
            if changes:
                ask(client, "PUT", "/v1/balance", json=changes)
            made = None
            if once:
                made = ask(client, "POST", "/v1/plans", params={"dry_run": False}, json={"policy": "multistage-once"})
            found = ask(client, "GET", "/v1/balance")
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    if made is not None:
        found["once"] = made
    tell(as_json, found, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    print(
        f"balancing is {'on' if found['on'] else 'off'}: every {found['period_s']:g} s, "
        f"{found['scheme']} above cov {found['alpha']:g} and {found['beta_bytes_per_s']:,.0f} B/s, "
        f"{found['shuffle']} above cov {found['gamma']:g} and {found['theta_bytes_per_s']:,.0f} B/s"
    )
    if (last := found["last_round"]) is not None:
        print(f"last round: {last['taken']:,} of {last['moves']:,} moves taken; {last['note']}")
    if (made := found.get("once")) is not None:
        taken = sum(move["taken"] for move in made["moves"])
        print(f"now: {taken:,} of {len(made['moves']):,} moves taken; {made['note']}")
