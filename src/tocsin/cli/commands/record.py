"""`tocsin record FILE`: record everything that the dashboard shows."""

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
