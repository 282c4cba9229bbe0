"""`tocsin record FILE` and `tocsin replay TRACE`: record what the dashboard shows, and show it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from tocsin.cli.processes import unless_stopped
from tocsin.wire.errors import TocsinError

if TYPE_CHECKING:
    from tocsin.runtime.http.trace_recording import Recording


def register(app: typer.Typer) -> None:
    app.command("record")(record)
    app.command("replay")(replay)


def record(
    file: Annotated[Path, typer.Argument(help="A new Parquet file.", show_default=False)],
    seconds: Annotated[
        float | None, typer.Option(help="Seconds to record. Default: until Ctrl-C.", min=0.1, show_default=False)
    ] = None,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Record a running network. `tocsin replay FILE` shows the recording on the dashboard.

    The recording grows in FILE.part. If this command is killed, `tocsin replay FILE` reads that file.
    """
    import asyncio

    from tocsin.runtime.http.trace_recording import Recording

    with failing_on_errors(as_json):
        try:
            recording = Recording(file)
        except OSError as error:
            fail(as_json, f"{file} cannot be written: {error.strerror or error}")
        note(f"Recording {url} …" + ("" if seconds else " Press Ctrl-C to end it."))
        try:
            asyncio.run(_record(recording, url, token, seconds))
        except TocsinError:
            recording.close()
            if not recording.rows:
                file.unlink(missing_ok=True)
            raise
    recording.close()
    show(as_json, {"file": str(file), "rows": recording.rows}, lambda: print(f"{file}: {recording.rows:,} rows"))


async def _record(recording: Recording, url: str, token: str | None, seconds: float | None) -> None:
    """Record until the time is over, a signal arrives or the coordinator ends the stream."""
    import asyncio
    import contextlib

    from tocsin.cli.connection import coordinator_token, follow_events
    from tocsin.model.trace import from_json
    from tocsin.runtime.http.listening import stop_on_signals

    async def read() -> bool:
        async for event, data in follow_events(url, "/v1/watch", coordinator_token(url, token)):
            if event in ("picture", "rows"):
                recording.add(from_json(data), event == "picture")
        return True

    stop = asyncio.Event()
    with stop_on_signals(stop), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            if await unless_stopped(read(), stop):
                note("The coordinator ended the stream.")


def replay(
    trace: Annotated[Path, typer.Argument(help="A Parquet file of trace rows.", show_default=False)],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free port.", min=0, max=65535)] = 8580,
    speed: Annotated[float, typer.Option(help="Seconds of the trace per second.", min=0.01, max=100_000)] = 1.0,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show a trace on the dashboard. Runs on this machine until Ctrl-C.

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
