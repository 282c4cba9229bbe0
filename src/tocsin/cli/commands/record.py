"""`tocsin record`: everything the dashboard shows, into a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.options import DEFAULT_COORDINATOR_URL, AsJson, CoordinatorUrl, Token
from tocsin.cli.output import fail, note, tell

if TYPE_CHECKING:
    from tocsin.runtime.http.trace_recording import Recording


def register(app: typer.Typer) -> None:
    app.command("record")(record)


def record(
    file: Annotated[Path, typer.Argument(help="A new Parquet file.", show_default=False)],
    seconds: Annotated[
        float | None, typer.Option(help="How long; else until Ctrl-C.", min=0.1, show_default=False)
    ] = None,
    url: CoordinatorUrl = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Record a running network; `tocsin replay FILE` shows it again.

    What is recorded so far is in FILE.part, which `tocsin replay FILE` reads too should this end badly.
    """
    import asyncio

    from tocsin.runtime.http.trace_recording import Recording
    from tocsin.wire.errors import TocsinError

    try:
        recording = Recording(file)
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    except OSError as error:
        fail(as_json, f"{file} cannot be written: {error.strerror or error}")
    note(f"Recording {url} …" + ("" if seconds else " Press Ctrl-C to end it."))
    failed = None
    try:
        asyncio.run(_record(recording, url, token, seconds))
    except TocsinError as error:
        failed = error
    recording.close()
    if failed is not None:
        if not recording.rows:
            file.unlink(missing_ok=True)
        fail(as_json, failed.message, code=failed.code)
    tell(
        as_json, {"file": str(file), "rows": recording.rows}, lambda: print(f"{file}: {recording.rows:,} rows")
    )  # fmt: skip


async def _record(recording: Recording, url: str, token: str | None, seconds: float | None) -> None:
    """Until the time is over, or a signal."""
    import asyncio

    from tocsin.cli.connection import coordinator_token
    from tocsin.cli.streams import read_events
    from tocsin.model.trace import from_json
    from tocsin.runtime.http.listening import stop_on_signals

    async def read() -> None:
        async for event, data in read_events(url, "/v1/watch", coordinator_token(url, token)):
            if event in ("picture", "rows"):
                recording.add(from_json(data), event == "picture")

    stop = asyncio.Event()
    with stop_on_signals(stop):
        reading, stopping = asyncio.create_task(read()), asyncio.create_task(stop.wait())
        await asyncio.wait((reading, stopping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if reading.done():
            reading.result()  # raises what went wrong
            note("The coordinator ended the stream.")
        reading.cancel()
        await asyncio.gather(reading, stopping, return_exceptions=True)
