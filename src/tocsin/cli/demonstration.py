"""The frame of the demos: run to the end or until a signal, keep the page on a terminal, report problems."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from tocsin.cli.console import fail, failing_on_errors, note
from tocsin.cli.processes import stop_event, unless_stopped


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demo, ready to run."""

    run: Callable[[], Coroutine[Any, Any, dict[str, Any]]]
    """Runs to the end, prints the report and returns it."""
    stop: Callable[[], Awaitable[None]]
    """Stops all processes, in any case."""
    page: Callable[[], str]
    """Names the page that stays on a terminal, with its address."""
    out: Path
    """The report and the logs."""
    advice: str = ""
    """What helps if the demo ends early."""


def demonstrate(
    make: Callable[[Path], Demonstration],
    problems: Callable[[dict[str, Any]], list[str]],
    out: Path,
    as_json: bool,
    remark: str = "",
) -> None:
    """Run the demo that `make` returns for a temporary folder. Exits with 1 if its report has problems.

    `make` raises ValueError for a wrong option.
    """
    import asyncio
    import sys
    import tempfile

    from tocsin.runtime.http.listening import loop_factory
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    with failing_on_errors(as_json):
        try:
            with (
                tempfile.TemporaryDirectory(prefix="tocsin-demo-") as folder,
                asyncio.Runner(loop_factory=loop_factory()) as runner,
            ):
                report = runner.run(_run(make, Path(folder), stay=sys.stdout.isatty()))
        except (OSError, ValueError) as error:
            fail(as_json, str(error), code="bad_request")
    if report is None:
        fail(as_json, "stopped before the end", code="stopped")
    if found := problems(report):
        for problem in found:
            note(f"tocsin: {problem}")
        note(f"tocsin: the report and the logs are in {out}{remark}")
        raise typer.Exit(1)


async def _run(make: Callable[[Path], Demonstration], folder: Path, *, stay: bool) -> dict[str, Any] | None:
    """Return the report, or None if a signal ends the demo."""
    from tocsin.demo.requests import explained
    from tocsin.wire.errors import TocsinError

    demo = make(folder)
    stop = stop_event()
    try:
        report = await unless_stopped(demo.run(), stop)
        if report is not None and stay:
            note(f"{demo.page()}\nPress Ctrl-C to stop.")
            await stop.wait()
        return report
    except Exception as error:
        reason = explained(error)
        if reason is None:
            raise
        message = f"{reason.message}. The demo ended early; logs are in {demo.out / 'logs'}.{demo.advice}"
        raise TocsinError(reason.code, message) from error
    finally:
        await demo.stop()
