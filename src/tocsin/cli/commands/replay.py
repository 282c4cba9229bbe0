"""`tocsin replay TRACE`: show a recorded or simulated trace on the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import AsJson, fail, failing_on_errors, note, show


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    trace: Annotated[Path, typer.Argument(help="A Parquet file of trace rows.", show_default=False)],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free port.", min=0, max=65535)] = 8580,
    speed: Annotated[float, typer.Option(help="Seconds of the trace per second.", min=0.01, max=100_000)] = 1.0,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show a trace on the dashboard on this machine, until Ctrl-C.

    `tocsin record` and the coordinator's setting `trace` record a live network; the simulator records a scenario.
    """
    import asyncio
    import sys
    import webbrowser

    from tocsin.web.replay_server import ReplayServer

    def ready(address: str) -> None:
        show(as_json, {"address": address}, lambda: print(f"Replay of {trace}: {address}/", flush=True))
        note("Press Ctrl-C to stop.")
        if open_page and sys.stdout.isatty():
            webbrowser.open(f"{address}/")

    async def run() -> None:
        await ReplayServer(trace, port=port, speed=speed, ready=ready).run()

    with failing_on_errors(as_json):
        try:
            asyncio.run(run())
        except OSError as error:
            fail(as_json, f"cannot listen on port {port}: {error.strerror or error}")
