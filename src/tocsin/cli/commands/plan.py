"""`tocsin plan`: what a balancing policy would do, move by move, with its reasons; and do it, if asked to."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tocsin.cli.options import DEFAULT_COORDINATOR_URL, AsJson, CoordinatorUrl, Token
from tocsin.cli.output import fail, note, table, tell
from tocsin.wire.errors import TocsinError

_SHOWN = 50
"""Moves printed; `--json` has all."""


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    policy: Annotated[str | None, typer.Option(help="Its name; without one the names are listed.")] = None,
    move: Annotated[list[str] | None, typer.Option(help="Instead of a policy: SUBSCRIBER=BROKER, repeated.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run/--do", help="Only say what would be done, or do it.")] = True,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what a policy would move and why, with the balance before and after."""
    from tocsin.cli.connection import ask, connect_coordinator

    try:
        with connect_coordinator(url, token) as client:
            if policy is None and not move:
                known = ask(client, "GET", "/v1/plans")
                tell(as_json, known, lambda: print("policies:", ", ".join(known["policies"])))
                return
            wanted: dict[str, Any] = {"moves": _moves(move)} if move else {"policy": policy}
            found = ask(client, "POST", "/v1/plans", params={"dry_run": dry_run}, json=wanted)
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    except ValueError as error:
        fail(as_json, str(error), code="bad_request")
    tell(as_json, found, lambda: _show(found))


def _moves(given: list[str]) -> list[dict[str, str]]:
    moves = []
    for text in given:
        subscriber, equals, target = text.partition("=")
        if not (equals and subscriber and target):
            raise ValueError(f"{text!r}: expected SUBSCRIBER=BROKER")
        moves.append({"subscriber": subscriber, "target": target})
    return moves


def _show(found: dict[str, Any]) -> None:
    moves = found["moves"]
    rows = [
        (one["subscriber"], one["source"], one["target"], "taken" if one["taken"] else "refused", one["reason"])
        for one in moves[:_SHOWN]
    ]
    if rows:
        table(("subscriber", "from", "to", "", "reason"), rows)
    if len(moves) > _SHOWN:
        note(f"and {len(moves) - _SHOWN:,} more; --json has them all")
    before, after = found["before"], found["after"]
    print(
        f"{found['policy']}: {sum(one['taken'] for one in moves):,} of {len(moves):,} moves"
        f"{' (nothing is done: --do carries it out)' if found['dry_run'] and moves else ''}; "
        f"cov {before['cov']:.3f} → {after['cov']:.3f}, highest {before['maximum']:.0f} → {after['maximum']:.0f} B/s"
        f"{'. ' + found['note'] if found['note'] else ''}"
    )
