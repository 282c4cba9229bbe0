"""`tocsin subscribe CHANNEL name=value …`: hold a subscription and print its results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.console import (
    DEFAULT_COORDINATOR_URL,
    AsJson,
    CoordinatorUrl,
    Token,
    fail,
    failing_on_errors,
    note,
)

if TYPE_CHECKING:
    from tocsin.client import Subscriber
    from tocsin.client.notifications import Notification


_QUIET_S = 2.0
"""A wait for a broker that is longer than this is explained."""


def register(app: typer.Typer) -> None:
    app.command("subscribe")(subscribe)


@dataclass(frozen=True, slots=True)
class _Request:
    channel: str
    parameters: dict[str, Any]
    after: str | None
    count: int | None
    give_up_s: float
    unsubscribe: bool
    as_json: bool


def subscribe(
    channel: Annotated[str, typer.Argument(help="Name of the channel.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(help="name=value; the value is read as JSON if possible, else as text.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Subscriber. Default: the user of this machine.")] = None,
    count: Annotated[int | None, typer.Option(help="Stop after this many results.", min=1)] = None,
    state: Annotated[Path | None, typer.Option(help="File that keeps the cursors, to resume from.")] = None,
    after: Annotated[str | None, typer.Option(help="Start after this cursor. Default: now.")] = None,
    give_up_s: Annotated[float, typer.Option(help="Seconds to wait for a broker at the start.", min=0)] = 90.0,
    leave: Annotated[
        bool, typer.Option("--leave", help="Unsubscribe at the end. Default: results wait for the next session.")
    ] = False,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print the results of a subscription until Ctrl-C. With --json each result is one line with an object."""
    import asyncio
    import getpass

    from tocsin.cli.connection import connect_coordinator, coordinator_token, wait_for_server

    try:
        request = _Request(channel, parse_parameters(parameters or []), after, count, give_up_s, leave, as_json)
    except ValueError as error:
        fail(as_json, str(error), code="bad_parameter")
    if coordinator_token(url, token) is None:  # the first start creates the token; with a token, the SDK itself waits
        with connect_coordinator(url, token) as client:
            wait_for_server(client)
    options = {"user": user or getpass.getuser(), "token": coordinator_token(url, token), "state": state}
    with failing_on_errors(as_json):
        try:
            asyncio.run(_subscribe(url, options, request))
        except KeyboardInterrupt:
            note("stopped; new results wait for the next session of this user")


def parse_parameters(pairs: list[str]) -> dict[str, Any]:
    """Parse parameters: `radius_m=500` is a number, `kind=fire` and `name="5"` are text."""
    import json

    parameters: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"expected name=value, got {pair!r}")
        try:
            parameters[name] = json.loads(text)
        except json.JSONDecodeError:
            parameters[name] = text
    return parameters


async def _subscribe(url: str, options: dict[str, Any], request: _Request) -> None:
    import asyncio

    from tocsin.client import Subscriber, Unreachable
    from tocsin.wire.errors import Code

    # This user may hold other subscriptions. Acknowledge by hand, so that only results printed here are acknowledged.
    async with Subscriber(url, acknowledge="manual", **options) as subscriber:
        telling = asyncio.create_task(_tell_waiting(subscriber, request.give_up_s))
        try:
            async with asyncio.timeout(request.give_up_s):
                subscription = await subscriber.subscribe(request.channel, request.parameters, after=request.after)
        except TimeoutError:
            message = f"no session after {request.give_up_s:g} s: {subscriber.trouble}"
            raise Unreachable(Code.NOT_READY, message) from None
        finally:
            telling.cancel()
        broker = await subscriber.connected()
        note(f"{subscriber.user} holds {subscription.channel} {subscription.id} at {broker}")
        await _print_results(subscriber, subscription.id, request)
        if request.unsubscribe:
            await subscription.unsubscribe()


async def _tell_waiting(subscriber: Subscriber, give_up_s: float) -> None:
    import asyncio

    await asyncio.sleep(_QUIET_S)
    note(f"waiting up to {give_up_s:g} s for a broker: {subscriber.trouble or 'no session yet'}")


async def _print_results(subscriber: Subscriber, subscription: str, request: _Request) -> None:
    """Print and acknowledge notifications of one subscription until `request.count` results are printed."""
    from tocsin.client import Recovered, Result

    results = 0
    async for notification in subscriber:
        if notification.subscription != subscription:
            continue
        _print(notification, request.as_json)
        if not isinstance(notification, Recovered):
            subscriber.ack(notification)
        results += isinstance(notification, Result)
        if results == request.count:
            return


def _print(notification: Notification[Any], as_json: bool) -> None:
    import msgspec

    from tocsin.client import Gap, Result

    match notification:
        case Result():
            line = {"cursor": notification.cursor, "result": notification.value} if as_json else notification.value
            print(msgspec.json.encode(line).decode(), flush=True)
        case Gap(ended=str(reason)):
            note(f"the subscription has ended: {reason}")
        case Gap():
            note(f"gap: results before {notification.cursor} have passed their retention")
        case _:
            note("caught up" if notification.complete else "caught up, except for the gap")
