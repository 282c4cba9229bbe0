"""`tocsin update DATASET name=value …`: replace a subscriber's own record in a dataset, through its broker."""

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
)


def register(app: typer.Typer) -> None:
    app.command("update")(update)


def update(
    dataset: Annotated[str, typer.Argument(help="Name of a KEYED dataset with OWNED BY.")],
    columns: Annotated[
        list[str] | None, typer.Argument(help="name=value; the value is read as JSON if possible, else as text.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Subscriber. Default: the user of this machine.")] = None,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Replace a subscriber's own record, and return when it is on disk. The owner column may be left out."""
    import asyncio
    import getpass

    from tocsin.cli.commands.subscribe import parse_parameters
    from tocsin.cli.connection import coordinator_token

    try:
        record = parse_parameters(columns or [])
    except ValueError as error:
        fail(as_json, str(error), code="bad_parameter")
    subscriber = user or getpass.getuser()
    with failing_on_errors(as_json):
        broker = asyncio.run(_put(url, coordinator_token(url, token), subscriber, dataset, record))
    show(as_json, {"user": subscriber, "dataset": dataset, "broker": broker}, lambda: note(f"stored through {broker}"))


async def _put(url: str, token: str | None, user: str, dataset: str, record: dict[str, Any]) -> str:
    """Store the record by a REST call: a session would replace one that the subscriber has open."""
    from urllib.parse import quote

    from tocsin.cli.connection import ask, connect_broker
    from tocsin.client.coordinator import CoordinatorClient
    from tocsin.client.tls import context_for

    coordinator = CoordinatorClient(url, token, context_for(True), user)
    try:
        place = await coordinator.request_broker(None)
    finally:
        await coordinator.close()
    with connect_broker(place.address, place.token) as client:
        ask(client, "PUT", f"/v1/me/datasets/{quote(dataset, safe='')}", json=record)
    return place.broker
