"""`tocsin plan`: show the moves that a balancing policy would make, with reasons, and carry them out with `--do`."""

from __future__ import annotations

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

_SHOWN = 50
"""Moves that are printed; `--json` prints all."""


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


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
    """Show the moves of a policy and their reasons, with the balance before and after."""
    from tocsin.cli.connection import ask, connect_coordinator

    with failing_on_errors(as_json), connect_coordinator(url, token) as client:
        if policy is None and not move:
            known = ask(client, "GET", "/v1/plans")
            show(as_json, known, lambda: print("policies:", ", ".join(known["policies"])))
            return
        try:
            body: dict[str, Any] = {"moves": _moves(move)} if move else {"policy": policy}
        except ValueError as error:
            fail(as_json, str(error), code="bad_request")
        reply = ask(client, "POST", "/v1/plans", params={"dry_run": dry_run}, json=body)
    show(as_json, reply, lambda: _print(reply))


def _moves(texts: list[str]) -> list[dict[str, str]]:
    moves = []
    for text in texts:
        subscriber, equals, target = text.partition("=")
        if not (equals and subscriber and target):
            raise ValueError(f"{text!r}: expected SUBSCRIBER=BROKER")
        moves.append({"subscriber": subscriber, "target": target})
    return moves


def _print(reply: dict[str, Any]) -> None:
    moves = reply["moves"]
    rows = [
        (move["subscriber"], move["source"], move["target"], "taken" if move["taken"] else "refused", move["reason"])
        for move in moves[:_SHOWN]
    ]
    if rows:
        table(("subscriber", "from", "to", "", "reason"), rows)
    if len(moves) > _SHOWN:
        note(f"and {len(moves) - _SHOWN:,} more; --json prints all of them")
    before, after = reply["before"], reply["after"]
    print(
        f"{reply['policy']}: {sum(move['taken'] for move in moves):,} of {len(moves):,} moves"
        f"{' (dry run: --do carries them out)' if reply['dry_run'] and moves else ''}; "
        f"cov {before['cov']:.3f} → {after['cov']:.3f}, highest {before['maximum']:.0f} → {after['maximum']:.0f} B/s"
        f"{'. ' + reply['note'] if reply['note'] else ''}"
    )
