"""`tocsin replay`: a recorded or simulated trace, on the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.output import fail, note, tell


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    trace: Annotated[Path, typer.Argument(help="A Parquet file of trace rows.", show_default=False)],
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.", min=0, max=65535)] = 8580,
    speed: Annotated[float, typer.Option(help="Trace seconds per second.", min=0.01, max=100_000)] = 1.0,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in a browser.")] = True,
    as_json: AsJson = False,
) -> None:
    """Play a trace again on the dashboard, on this machine, until Ctrl-C.

    `tocsin record` and the coordinator's setting `trace` make one of a live network, the simulator of a scenario.
    """
    import asyncio
    import sys
    import webbrowser

    from tocsin.web.replay_server import ReplayServer
    from tocsin.wire.errors import TocsinError

    def ready(address: str) -> None:
        tell(as_json, {"address": address}, lambda: print(f"Replay of {trace}: {address}/", flush=True))
        note("Press Ctrl-C to stop.")
        if open_page and sys.stdout.isatty():
            webbrowser.open(f"{address}/")

    async def run() -> None:
        await ReplayServer(trace, port=port, speed=speed, ready=ready).run()

    try:
        asyncio.run(run())
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    except OSError as error:
        fail(as_json, f"cannot listen on port {port}: {error.strerror or error}")
