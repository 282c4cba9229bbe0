"""`tocsin balance`: show or change how the coordinator balances the brokers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tocsin.cli.console import DEFAULT_COORDINATOR_URL, AsJson, CoordinatorUrl, Token, failing_on_errors, show


def register(app: typer.Typer) -> None:
    app.command("balance")(balance)


def balance(
    once: Annotated[
        bool, typer.Option("--once", help="Plan and carry out one round now, even if balancing is off.")
    ] = False,
    on: Annotated[bool | None, typer.Option("--on/--off", help="Turn periodic balancing on or off.")] = None,
    period_s: Annotated[float | None, typer.Option(help="Seconds between two rounds.")] = None,
    scheme: Annotated[str | None, typer.Option(help="Dynamic migration: ldm, sdm, affinity or none.")] = None,
    shuffle: Annotated[str | None, typer.Option(help="Shuffle: gsh, affinity or none.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Migrate above this coefficient of variation (cov) of the loads.")
    ] = None,
    beta: Annotated[float | None, typer.Option(help="Migrate only above this mean load, in bytes/s.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Shuffle above this cov of the loads.")] = None,
    theta: Annotated[float | None, typer.Option(help="Shuffle only above this mean load, in bytes/s.")] = None,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show the balancing settings and the last round. With options: change the settings, or run one round."""
    from tocsin.cli.connection import ask, connect_coordinator

    changes = {
        "on": on,
        "period_s": period_s,
        "scheme": scheme,
        "shuffle": shuffle,
        "alpha": alpha,
        "beta_bytes_per_s": beta,
        "gamma": gamma,
        "theta_bytes_per_s": theta,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    with failing_on_errors(as_json), connect_coordinator(url, token) as client:
        if changes:
            ask(client, "PUT", "/v1/balance", json=changes)
        plan = None
        if once:
            plan = ask(client, "POST", "/v1/plans", params={"dry_run": False}, json={"policy": "multistage-once"})
        reply = ask(client, "GET", "/v1/balance")
    if plan is not None:
        reply["once"] = plan
    show(as_json, reply, lambda: _print(reply))


def _print(reply: dict[str, Any]) -> None:
    print(
        f"balancing is {'on' if reply['on'] else 'off'}: every {reply['period_s']:g} s, "
        f"{reply['scheme']} above cov {reply['alpha']:g} and {reply['beta_bytes_per_s']:,.0f} B/s, "
        f"{reply['shuffle']} above cov {reply['gamma']:g} and {reply['theta_bytes_per_s']:,.0f} B/s"
    )
    if (last := reply["last_round"]) is not None:
        print(f"last round: {last['taken']:,} of {last['moves']:,} moves accepted; {last['note']}")
    if (plan := reply.get("once")) is not None:
        taken = sum(move["taken"] for move in plan["moves"])
        print(f"this round: {taken:,} of {len(plan['moves']):,} moves accepted; {plan['note']}")
