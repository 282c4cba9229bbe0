"""`tocsin drain broker-2`: move everybody away from a broker, so that it can be stopped."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tocsin.cli.options import DEFAULT_COORDINATOR_URL, AsJson, CoordinatorUrl, Token
from tocsin.cli.output import fail, note, tell
from tocsin.wire.errors import TocsinError


def register(app: typer.Typer) -> None:
    app.command("drain")(drain)


def drain(
    broker: Annotated[str, typer.Argument(help="Its id, as `tocsin status` shows it.")],
    off: Annotated[bool, typer.Option("--off", help="No longer: it takes newcomers again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when nobody is left there.")] = False,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Send a broker no newcomers and move its subscribers to others, without interruption, until it is empty."""
    from urllib.parse import quote

    from tocsin.cli.connection import ask, connect_coordinator

    path = f"/v1/brokers/{quote(broker, safe='')}"
    try:
        with connect_coordinator(url, token) as client:
            ask(client, "POST", f"{path}/drain", json={"on": not off})
            found: dict[str, Any] = ask(client, "GET", path)
            while wait and not off and _left(found):
                note(f"{broker}: {found['subscribers']:,} subscribers left, {found['migrations_out']:,} on their way")
                time.sleep(1)
                found = ask(client, "GET", path)
                if not found["draining"]:
                    fail(as_json, f"{broker} is no longer drained: somebody said --off", code="in_use")
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    tell(as_json, found, lambda: _show(found))


def _left(found: dict[str, Any]) -> int:
    return int(found["subscribers"]) + int(found["migrations_out"])


def _show(found: dict[str, Any]) -> None:
    if not found["draining"]:
        print(f"{found['broker']} takes newcomers again.")
    elif _left(found):
        print(f"{found['broker']} is draining: {found['subscribers']:,} subscribers left.")
    else:
        print(f"{found['broker']} is drained: it can be stopped.")
