"""`tocsin channels` and `tocsin datasets`: list the channels or datasets of a data cluster, or print records."""

from __future__ import annotations

from typing import Annotated

import typer

from tocsin.cli.console import DEFAULT_URL, AsJson, Token, Url, failing_on_errors, show, table


def register(app: typer.Typer) -> None:
    app.command("channels")(channels)
    group = typer.Typer(
        invoke_without_command=True, help="List the datasets of a data cluster. `tap` prints the records of a dataset."
    )
    group.callback()(datasets)
    group.command("tap")(tap)
    app.add_typer(group, name="datasets")


def channels(url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """List the channels of a data cluster."""
    from tocsin.cli.connection import ask, connect

    with failing_on_errors(as_json), connect(url, token) as client:
        reply = ask(client, "GET", "/v1/channels")
    rows = [
        (
            channel["name"],
            ", ".join(map(_parameter, channel["parameters"])),
            "continuous" if channel["period_s"] is None else f"every {channel['period_s']:g} s",
            channel["subscriptions"],
            channel["executions"],
            channel["missed_ticks"],
            channel["failures"],
            channel["dead_letters"],
            "" if channel["last_duration_s"] is None else f"{channel['last_duration_s']:.2f} s",
            channel["last_error"],
        )
        for channel in reply["channels"]
    ]
    counts = ("SUBSCRIPTIONS", "EXECUTIONS", "MISSED", "FAILED", "DEAD LETTERS")
    titles = ("NAME", "PARAMETERS", "RUNS", *counts, "LAST", "ERROR")
    show(as_json, reply, lambda: table(titles, rows))


def _parameter(parameter: dict[str, str]) -> str:
    """The parameter as its declaration has it."""
    bound = " DEFAULT CURRENT_USER ONLY" if "bound" in parameter else ""
    return f"{parameter['name']} {parameter['type']}{bound}"


def datasets(context: typer.Context, url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """List the datasets of a data cluster. `tocsin datasets tap NAME` prints the records of one."""
    if context.invoked_subcommand is not None:
        return
    from tocsin.cli.connection import ask, connect

    with failing_on_errors(as_json), connect(url, token) as client:
        reply = ask(client, "GET", "/v1/datasets")
    columns = ("name", "kind", "owned_by", "rows", "files", "bytes", "backlog_bytes")
    rows = [tuple(dataset[column] for column in columns) for dataset in reply["datasets"]]
    show(as_json, reply, lambda: table(("NAME", "KIND", "OWNED BY", "ROWS", "FILES", "BYTES", "BACKLOG"), rows))


def tap(
    name: Annotated[str, typer.Argument(help="Name of the dataset.", show_default=False)],
    count: Annotated[int, typer.Option(help="Stop after this many records; 0 continues until Ctrl-C.", min=0)] = 0,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Print the records of a dataset as JSON lines: first stored ones, then new ones as they arrive.

    This is a sample, not a copy: of a fast feed only some hundred records a second are shown.
    """
    import asyncio
    import contextlib

    import msgspec

    from tocsin.cli.connection import cluster_token, follow_events

    async def print_records() -> int:
        printed = 0
        async for _, data in follow_events(url, f"/v1/datasets/{name}/tap", cluster_token(url, token)):
            for record in msgspec.json.decode(data, type=list[msgspec.Raw]):
                print(bytes(record).decode(), flush=True)
                printed += 1
                if printed == count:
                    return printed
        return printed

    with failing_on_errors(as_json), contextlib.suppress(KeyboardInterrupt):
        printed = asyncio.run(print_records())
        show(as_json, {"records": printed}, lambda: None)
