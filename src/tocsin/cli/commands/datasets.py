"""`tocsin datasets`: what is stored, and what waits to be."""

from __future__ import annotations

from typing import Annotated

import typer

from tocsin.cli.options import DEFAULT_URL, AsJson, Token, Url
from tocsin.cli.output import fail, table, tell


def register(app: typer.Typer) -> None:
    group = typer.Typer(invoke_without_command=True, help="List the datasets of a data cluster, or look into one.")
    group.callback()(datasets)
    group.command("tap")(tap)
    app.add_typer(group, name="datasets")


def datasets(context: typer.Context, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """List the datasets of a data cluster; `tap` looks into one."""
    if context.invoked_subcommand is not None:
        return
    from tocsin.cli.connection import ask, connect
    from tocsin.wire.errors import TocsinError

    try:
        with connect(url, token) as client:
            said = ask(client, "GET", "/v1/datasets")
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    rows = [
        (one["name"], one["kind"], one["rows"], one["files"], one["bytes"], one["backlog_bytes"])
        for one in said["datasets"]
    ]
    tell(as_json, said, lambda: table(("NAME", "KIND", "ROWS", "FILES", "BYTES", "BACKLOG"), rows))


def tap(
    name: Annotated[str, typer.Argument(help="The dataset.", show_default=False)],
    count: Annotated[int, typer.Option(help="Stop after this many records; 0 goes on until Ctrl-C.", min=0)] = 0,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print records as they come in, one JSON object a line: what there is, then what is new.

    A look, not a copy: of fast feeds only some hundreds a second are shown, and nothing is kept for later.
    """
    import asyncio

    from tocsin.cli.streams import read_events
    from tocsin.wire.errors import TocsinError

    async def run() -> int:
        import msgspec

        shown = 0
        async for _, data in read_events(url, f"/v1/datasets/{name}/tap", cluster_token(url, token)):
            for record in msgspec.json.decode(data, type=list[msgspec.Raw]):
                print(bytes(record).decode(), flush=True)
                shown += 1
                if shown == count:
                    return shown
        return shown

    from tocsin.cli.connection import cluster_token

    try:
        shown = asyncio.run(run())
    except KeyboardInterrupt:
        return
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    if as_json:
        tell(as_json, {"records": shown}, lambda: None)
