"""`tocsin up`: everything on this machine, as processes that are kept alive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.output import fail, note, tell

if TYPE_CHECKING:
    from tocsin.runtime.stack.stack import Stack


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    brokers: Annotated[int, typer.Option(help="How many brokers.", min=0, max=100)] = 3,
    root: Annotated[
        str | None, typer.Option(help="Where data lies; else TOCSIN_ROOT, else tocsin-data.", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Of the data cluster; 0 takes free ones for all.", show_default=False)
    ] = None,
    settings: Annotated[str | None, typer.Option(help="TOML file with a table for each kind of process.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start a data cluster, a coordinator and brokers on this machine; Ctrl-C stops them.

    The first start prints the administrator's token, once; it is good at all of them. A process that dies is started
    again. Each also starts alone: `tocsin cluster`, `tocsin coordinator`, `tocsin broker`.
    """
    import asyncio
    import os

    from tocsin.cluster.server.settings import ClusterProcessSettings
    from tocsin.runtime.http.logs import configure_logs
    from tocsin.runtime.http.settings import load
    from tocsin.runtime.stack.stack import StackSettings
    from tocsin.wire.errors import TocsinError

    try:
        known = load(ClusterProcessSettings, {"root": root, "port": port}, os.environ, settings)
        chosen = StackSettings(
            Path(known.root), brokers, cluster_port=known.port, free_ports=known.port == 0, settings=settings
        )
        configure_logs(known.log_level, known.log_form)
        asyncio.run(_run(chosen, as_json))
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)


async def _run(chosen: Any, as_json: bool) -> None:
    """Until a signal."""
    import asyncio
    import signal

    from tocsin.runtime.stack.stack import Stack

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    stack = Stack(chosen)
    starting = asyncio.create_task(stack.start())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting  # raises what went wrong
            tell(as_json, stack.described(), lambda: _welcome(stack))
            await stopping
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await stack.stop()


def _welcome(stack: Stack) -> None:
    said = stack.described()
    print(f"Tocsin data cluster: {said['address']}")
    print(f"Coordinator:         {said['coordinator']}")
    for name, address in said["brokers"].items():
        print(f"{name + ':':20} {address}")
    print(f"Dashboard:           {_dashboard(stack)}")
    if said["token"] is not None:
        print(f"Administrator's token, shown this once: {said['token']}")
    print(f"Commands on this machine find a token by themselves ({said['token_file']}). Go on with", flush=True)
    for line in ("apply app.sql", "publish DATASET < records.jsonl", "subscribe CHANNEL name=value", "status"):
        print(f"  tocsin {line}", flush=True)
    note("Press Ctrl-C to stop.")


def _dashboard(stack: Stack) -> str:
    """On a terminal with the token, which a browser keeps to itself behind the #; never into a file or a pipe."""
    import sys

    from tocsin.wire.errors import TocsinError

    address = f"{stack.coordinator_url}/"
    try:
        token = stack.first_token or stack.admin_token()
    except TocsinError:
        return f"{address} (asks for a token)"
    return f"{address}#token={token}" if sys.stdout.isatty() else f"{address} (the token is in {stack.token_file})"
