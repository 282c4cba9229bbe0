"""`tocsin demo`: the emergency city on a network of real processes, with a report at the end; docs/demo.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.output import fail, note

if TYPE_CHECKING:
    from tocsin.demo.settings import DemoSettings


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    subscribers: Annotated[int, typer.Option(help="People in the city.", min=1)] = 400,
    brokers: Annotated[int, typer.Option(help="How many brokers.", min=1, max=100)] = 5,
    placement: Annotated[str, typer.Option(help="nearest, round-robin, random or least-loaded.")] = "nearest",
    balance: Annotated[str, typer.Option(help="ldm, sdm, affinity or none; ldm+gsh shuffles too.")] = "ldm",
    minutes: Annotated[float, typer.Option(help="How long the day takes, in real time.", min=0.05)] = 3.0,
    speed: Annotated[float, typer.Option(help="How much faster than real time the city lives.", min=1)] = 10.0,
    map: Annotated[
        Path | None, typer.Option("--map", help="Streets as well-known text; else a built-in city.", dir_okay=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed is another day.", min=0)] = 7,
    out: Annotated[Path, typer.Option(help="Folder for report, figures and trace.", file_okay=False)] = Path(
        "out/demo"
    ),
    application: Annotated[
        Path | None, typer.Option(help="The application file; else examples/emergency.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """An emergency city on a whole network on this machine: people move, things happen, brokers are balanced.

    Prints the dashboard's address, and a report in the end. On a terminal it serves the dashboard until Ctrl-C.
    """
    import asyncio
    import sys
    import tempfile

    from tocsin.demo.report import failed
    from tocsin.demo.settings import DemoSettings, application_file
    from tocsin.runtime.http.event_loop import loop_factory
    from tocsin.runtime.http.logs import configure_logs
    from tocsin.wire.errors import TocsinError

    configure_logs("error")
    try:
        settings = DemoSettings(
            application_file(application), out, subscribers, brokers, placement, balance, minutes, speed, seed, map
        )
        settings.check()
        with (
            tempfile.TemporaryDirectory(prefix="tocsin-demo-") as folder,
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            report = runner.run(_run(settings, Path(folder), stay=sys.stdout.isatty(), as_json=as_json))
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    except (OSError, ValueError) as error:
        fail(as_json, str(error), code="bad_request")
    if report is None:
        fail(as_json, "stopped before the end", code="stopped")
    if failed(report):
        note("tocsin: something was lost, repeated or broken, see the report; please keep the seed")
        raise typer.Exit(1)


async def _run(settings: DemoSettings, folder: Path, *, stay: bool, as_json: bool) -> dict[str, Any] | None:
    """The report, or None if a signal ended it before there was one. Nothing is left running."""
    import asyncio
    import contextlib
    import signal

    from tocsin.demo.run import DemoRun

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(number, stop.set)
    run = DemoRun(settings, folder, note)
    working = asyncio.create_task(_work(run, settings, as_json))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return None
        report = await working
        if stay:
            note(f"the dashboard stays: {run.dashboard}\nPress Ctrl-C to stop.")
            await stopping
        return report
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
        await run.stop()


async def _work(run: Any, settings: DemoSettings, as_json: bool) -> dict[str, Any]:
    import json

    from tocsin.demo import figures, report

    await run.start()
    outcome = await run.run_day()
    said = report.numbers(outcome)
    files = figures.draw(outcome, settings.out)
    page = settings.out / "report.md"
    page.write_text(report.markdown(said, outcome.periods, files), encoding="utf-8")
    report.show(said, [page, *files])
    if as_json:
        print(json.dumps(said | {"files": [str(path) for path in (page, *files)]}), flush=True)
    return said
