"""`tocsin subscribe CHANNEL name=value …`: hold a subscription and print what comes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.options import DEFAULT_COORDINATOR_URL, AsJson, CoordinatorUrl, Token
from tocsin.cli.output import fail, note

if TYPE_CHECKING:
    from tocsin.client.notifications import Notification


def register(app: typer.Typer) -> None:
    app.command("subscribe")(subscribe)


def subscribe(
    channel: Annotated[str, typer.Argument(help="The channel.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(help="name=value; a value is JSON if it can be, else text.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Who subscribes; this machine's user if not given.")] = None,
    count: Annotated[int | None, typer.Option(help="Stop after this many results.", min=1)] = None,
    state: Annotated[Path | None, typer.Option(help="Remember cursors in this file and resume from it.")] = None,
    after: Annotated[str | None, typer.Option(help="Begin at this cursor rather than now.")] = None,
    give_up_s: Annotated[float, typer.Option(help="How long to wait for a broker at the start.", min=0)] = 30.0,
    leave: Annotated[bool, typer.Option("--leave", help="Unsubscribe at the end; else results wait for you.")] = False,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print results as they come, until Ctrl-C. With --json each is one line, as an object."""
    import asyncio
    import getpass

    from tocsin.cli.connection import coordinator_token
    from tocsin.wire.errors import TocsinError

    try:
        given = parsed(parameters or [])
    except ValueError as error:
        fail(as_json, str(error), code="bad_parameter")
    options: dict[str, Any] = {
        "user": user or getpass.getuser(),
        "token": coordinator_token(url, token),
        "state": state,
    }
    try:
        asyncio.run(_follow(url, options, (channel, given, after), count, give_up_s, leave, as_json))
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    except KeyboardInterrupt:
        note("stopped; results wait for the next session of this user")


def parsed(pairs: list[str]) -> dict[str, Any]:
    """`radius_m=500` is a number, `kind=fire` is text, `name="5"` is text."""
    import json

    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"expected name=value, got {pair!r}")
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found


async def _follow(
    url: str, options: dict[str, Any], wanted: tuple[str, dict[str, Any], str | None], count: int | None,
    give_up_s: float, leave: bool, as_json: bool,
) -> None:  # fmt: skip
    import asyncio

    from tocsin.client import Recovered, Result, Subscriber, Unreachable
    from tocsin.wire.errors import Code

    channel, parameters, after = wanted
    # By hand, because this user may hold other subscriptions: what is not shown here is not acknowledged here.
    async with Subscriber(url, acknowledge="manual", **options) as subscriber:
        try:
            async with asyncio.timeout(give_up_s):
                held = await subscriber.subscribe(channel, parameters, after=after)
        except TimeoutError:
            raise Unreachable(Code.NOT_READY, f"no session after {give_up_s:g} s: {subscriber.trouble}") from None
        note(f"{subscriber.user} holds {held.channel} {held.id} at {await subscriber.connected()}")
        left = count
        async for notification in subscriber:
            if notification.subscription != held.id:
                continue
            _show(notification, as_json)
            if not isinstance(notification, Recovered):
                subscriber.ack(notification)
            if isinstance(notification, Result) and left is not None:
                left -= 1
                if left == 0:
                    break
        if leave:
            await held.unsubscribe()


def _show(notification: Notification[Any], as_json: bool) -> None:
    import msgspec

    from tocsin.client import Gap, Result

    match notification:
        case Result():
            line = {"cursor": notification.cursor, "result": notification.value} if as_json else notification.value
            print(msgspec.json.encode(line).decode(), flush=True)
        case Gap():
            note(f"gap: results before {notification.cursor} have passed their retention")
        case _:
            note("caught up" if notification.complete else "caught up, but for the gap")
