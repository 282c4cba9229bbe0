"""Commands for the coordinator of a running network: `tocsin status`, `drain`, `plan` and `balance`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tocsin.cli.console import (
    DEFAULT_COORDINATOR_URL,
    AsJson,
    CoordinatorUrl,
    Token,
    fail,
    failing_on_errors,
    note,
    show,
    table,
)
from tocsin.cli.coordinator import ask_coordinator

_SHOWN_MOVES = 50
"""Moves of a plan that are printed; `--json` prints all."""


def register(app: typer.Typer) -> None:
    for command in (balance, capacity, drain, plan, status):
        app.command(command.__name__)(command)


def status(url: CoordinatorUrl = DEFAULT_COORDINATOR_URL, token: Token = None, as_json: AsJson = False) -> None:
    """Show the network: brokers, sessions, subscriptions, loads, and channels whose results are late."""
    reply: dict[str, Any] = ask_coordinator(url, token, as_json, "GET", "/v1/status")
    show(as_json, reply, lambda: _print_status(reply))


def _print_status(reply: dict[str, Any]) -> None:
    titles = ("broker", "state", "subscribers", "online", "FE", "BE", "in/s", "out/s", "load/s", "p95", "address")
    table(titles, [_row(broker) for broker in reply["brokers"]])
    print(
        f"\n{reply['subscribers']:,} subscribers, {reply['online']:,} online, "
        f"{reply['frontend_subscriptions']:,} subscriptions, load {_size(reply['load_bytes_per_s'])}/s, "
        f"cov {reply['cov']:.3f}, {reply['migrations']:,} migrations in progress, {reply['moves_waiting']:,} waiting"
    )
    for line in cluster_lines(reply.get("cluster")):
        print(line)


def cluster_lines(cluster: dict[str, Any] | None) -> list[str]:
    """The state of the data cluster in words: one line, and one for each late channel."""
    if cluster is None:
        return []
    state = "ready" if cluster["ready"] else f"NOT READY: {'; '.join(cluster['reasons'])}"
    lines = [f"data cluster {state}"]
    for late in cluster["late"]:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(late["since_s"]))
        lines.append(f"channel {late['channel']} is late since {since} ({late['late_s']:.0f} s)")
    return lines


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


def drain(
    broker: Annotated[str, typer.Argument(help="Id of the broker, as `tocsin status` shows it.")],
    off: Annotated[bool, typer.Option("--off", help="Stop draining: the broker gets new subscribers again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the last subscriber has left the broker.")] = False,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Move all subscribers and topics away from a broker. They are not interrupted, and the broker gets no new ones."""
    from urllib.parse import quote

    from tocsin.cli.connection import ask, connect_coordinator

    path = f"/v1/brokers/{quote(broker, safe='')}"
    with failing_on_errors(as_json), connect_coordinator(url, token) as client:
        ask(client, "POST", f"{path}/drain", json={"on": not off})
        reply: dict[str, Any] = ask(client, "GET", path)
        while wait and not off and _left(reply):
            moving = f"{reply['migrations_out']:,} migrating"
            note(f"{broker}: {reply['subscribers']:,} subscribers left, {moving}, {reply['topics']:,} topics left")
            time.sleep(1)
            reply = ask(client, "GET", path)
            if not reply["draining"]:
                fail(as_json, f"{broker} is no longer draining: another command ended it with --off", code="in_use")
    show(as_json, reply, lambda: _print_drain(reply))


def _left(reply: dict[str, Any]) -> int:
    return int(reply["subscribers"]) + int(reply["migrations_out"]) + int(reply["topics"])


def _print_drain(reply: dict[str, Any]) -> None:
    if not reply["draining"]:
        print(f"{reply['broker']} gets new subscribers again.")
    elif _left(reply):
        left = f"{reply['subscribers']:,} subscribers and {reply['topics']:,} topics left"
        print(f"{reply['broker']} is draining: {left}.")
    else:
        print(f"{reply['broker']} is drained: it can be stopped.")


def capacity(
    broker: Annotated[str, typer.Argument(help="Id of the broker, as `tocsin status` shows it.")],
    in_bytes: Annotated[str | None, typer.Option("--in", help="Input in bytes/s, or `none`.")] = None,
    out_bytes: Annotated[str | None, typer.Option("--out", help="Output in bytes/s, or `none`.")] = None,
    matched: Annotated[str | None, typer.Option(help="Matching in messages/s, or `none`.")] = None,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show or change a broker's capacity for topics and its load. A change holds at once and survives restarts."""
    from urllib.parse import quote

    from tocsin.cli.connection import ask, connect_coordinator

    path = f"/v1/brokers/{quote(broker, safe='')}"
    given = {"in_bytes_per_s": in_bytes, "out_bytes_per_s": out_bytes, "matched_per_s": matched}
    try:
        change = {name: _limit(text) for name, text in given.items() if text is not None}
    except ValueError as error:
        fail(as_json, f"{error}: expected a number, or none", code="bad_request")
    with failing_on_errors(as_json), connect_coordinator(url, token) as client:
        if change:
            ask(client, "PUT", f"{path}/capacity", json=change)
        reply: dict[str, Any] = ask(client, "GET", path)
    show(as_json, reply, lambda: _print_capacity(reply))


def _limit(text: str) -> float | None:
    return None if text == "none" else float(text)


def _print_capacity(reply: dict[str, Any]) -> None:
    limits, load = reply["topic_capacity"], reply["topic_load"]
    source = "ordered" if limits["ordered"] else "configured"
    parts = (("input", "in_bytes_per_s", "B/s"), ("output", "out_bytes_per_s", "B/s"))
    for name, key, unit in (*parts, ("matching", "matched_per_s", "messages/s")):
        limit = "unlimited" if limits[key] is None else f"{limits[key]:,.0f} {unit} ({source})"
        used = "" if load is None else f", offered {load[key]:,.0f} {unit}"
        print(f"{name}: {limit}{used}")
    if load is not None:
        waiting = f"{_size(load['waiting_bytes'])} and {load['waiting_messages']:,} messages wait"
        print(f"{reply['broker']} is {load['state']}: {waiting}")


def plan(
    policy: Annotated[str | None, typer.Option(help="Name of the policy. Default: list the names.")] = None,
    move: Annotated[
        list[str] | None, typer.Option(help="A move instead of a policy: SUBSCRIBER=BROKER, may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run/--do", help="Only show the moves, or carry them out.")] = True,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show the moves of a balancing policy. Each has a reason; the balance is shown before and after."""
    from tocsin.cli.connection import ask, connect_coordinator

    with failing_on_errors(as_json), connect_coordinator(url, token) as client:
        if policy is None and not move:
            policies = ask(client, "GET", "/v1/plans")
            show(as_json, policies, lambda: print("policies:", ", ".join(policies["policies"])))
            return
        try:
            body: dict[str, Any] = {"moves": _moves(move)} if move else {"policy": policy}
        except ValueError as error:
            fail(as_json, str(error), code="bad_request")
        reply = ask(client, "POST", "/v1/plans", params={"dry_run": dry_run}, json=body)
    show(as_json, reply, lambda: _print_plan(reply))


def _moves(texts: list[str]) -> list[dict[str, str]]:
    moves = []
    for text in texts:
        subscriber, equals, target = text.partition("=")
        if not (equals and subscriber and target):
            raise ValueError(f"{text!r}: expected SUBSCRIBER=BROKER")
        moves.append({"subscriber": subscriber, "target": target})
    return moves


def _print_plan(reply: dict[str, Any]) -> None:
    moves = reply["moves"]
    rows = [
        (move["subscriber"], move["source"], move["target"], "taken" if move["taken"] else "refused", move["reason"])
        for move in moves[:_SHOWN_MOVES]
    ]
    if rows:
        table(("subscriber", "from", "to", "", "reason"), rows)
    if len(moves) > _SHOWN_MOVES:
        note(f"and {len(moves) - _SHOWN_MOVES:,} more; --json prints all of them")
    before, after = reply["before"], reply["after"]
    print(
        f"{reply['policy']}: {sum(move['taken'] for move in moves):,} of {len(moves):,} moves"
        f"{' (dry run: --do carries them out)' if reply['dry_run'] and moves else ''}; "
        f"cov {before['cov']:.3f} → {after['cov']:.3f}, highest {before['maximum']:.0f} → {after['maximum']:.0f} B/s"
        f"{'. ' + reply['note'] if reply['note'] else ''}"
    )


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
    """Show or change how brokers are balanced. Without options: show the settings and the last round."""
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
    show(as_json, reply, lambda: _print_balance(reply))


def _print_balance(reply: dict[str, Any]) -> None:
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
