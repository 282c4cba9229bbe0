"""`tocsin drain BROKER`: move all subscribers away from a broker, so that it can be stopped."""

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
)


def register(app: typer.Typer) -> None:
    app.command("drain")(drain)


def drain(
    broker: Annotated[str, typer.Argument(help="Id of the broker, as `tocsin status` shows it.")],
    off: Annotated[bool, typer.Option("--off", help="Stop draining: the broker gets new subscribers again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the last subscriber has left the broker.")] = False,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Give a broker no new subscribers and move its subscribers to other brokers, without interruption."""
    from urllib.parse import quote

    from tocsin.cli.connection import ask, connect_coordinator

    path = f"/v1/brokers/{quote(broker, safe='')}"
    with failing_on_errors(as_json), connect_coordinator(url, token) as client:
        ask(client, "POST", f"{path}/drain", json={"on": not off})
        reply: dict[str, Any] = ask(client, "GET", path)
        while wait and not off and _left(reply):
            note(f"{broker}: {reply['subscribers']:,} subscribers left, {reply['migrations_out']:,} migrating")
            time.sleep(1)
            reply = ask(client, "GET", path)
            if not reply["draining"]:
                fail(as_json, f"{broker} is no longer draining: another command ended it with --off", code="in_use")
    show(as_json, reply, lambda: _print(reply))


def _left(reply: dict[str, Any]) -> int:
    return int(reply["subscribers"]) + int(reply["migrations_out"])


def _print(reply: dict[str, Any]) -> None:
    if not reply["draining"]:
        print(f"{reply['broker']} gets new subscribers again.")
    elif _left(reply):
        print(f"{reply['broker']} is draining: {reply['subscribers']:,} subscribers left.")
    else:
        print(f"{reply['broker']} is drained: it can be stopped.")
