"""`tocsin dead-letters`: records that a channel passed over, because its query fails with them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tocsin.cli.console import DEFAULT_URL, AsJson, Token, Url, failing_on_errors, show, table

Name = Annotated[str, typer.Argument(help="Name of the channel.", show_default=False)]
Ids = Annotated[list[int] | None, typer.Option("--id", help="Id of a dead letter; may be repeated. Default: all.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="List, replay or discard records that make the query of a channel fail."
    )
    group.command("list")(list_letters)
    group.command("replay")(replay)
    group.command("discard")(discard)
    app.add_typer(group, name="dead-letters")


def list_letters(
    channel: Annotated[str | None, typer.Option(help="Only those of this channel.")] = None,
    after: Annotated[int, typer.Option(help="Start after this id.", min=0)] = 0,
    limit: Annotated[int, typer.Option(help="The most to list.", min=1, max=10_000)] = 100,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters with the record and the reason why the query fails."""
    from tocsin.cli.connection import ask, connect

    query = {"after": after, "limit": limit} | ({} if channel is None else {"channel": channel})
    with failing_on_errors(as_json), connect(url, token) as client:
        reply = ask(client, "GET", "/v1/dead-letters", params=query)
    columns = ("id", "channel", "dataset", "reason", "record")
    rows = [tuple(letter[column] for column in columns) for letter in reply["dead_letters"]]
    show(as_json, reply, lambda: table(("ID", "CHANNEL", "DATASET", "REASON", "RECORD"), rows))


def replay(
    channel: Name, ids: Ids = None, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> None:
    """Match dead letters again, for example after the channel was declared with a better query."""
    reply = _post(as_json, url, token, "replay", channel, ids)
    show(as_json, reply, lambda: print(f"{reply['replayed']} records replayed"))


def discard(
    channel: Name, ids: Ids = None, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False
) -> None:
    """Delete dead letters. The channel never matches their records."""
    reply = _post(as_json, url, token, "discard", channel, ids)
    show(as_json, reply, lambda: print(f"{reply['discarded']} records discarded"))


def _post(as_json: bool, url: str, token: str | None, action: str, channel: str, ids: list[int] | None) -> Any:
    from tocsin.cli.connection import ask, connect

    body = {"channel": channel, "ids": ids or None}
    with failing_on_errors(as_json), connect(url, token) as client:
        return ask(client, "POST", f"/v1/dead-letters/{action}", json=body)
