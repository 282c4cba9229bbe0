"""`tocsin demo`: the emergency city on a network of real processes, with a report at the end (docs/demo.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.console import AsJson, fail, failing_on_errors, note
from tocsin.cli.processes import stop_event, unless_stopped

if TYPE_CHECKING:
    from tocsin.demo.run import DemoRun
    from tocsin.demo.settings import DemoSettings


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    subscribers: Annotated[int, typer.Option(help="Number of people in the city.", min=1)] = 400,
    brokers: Annotated[int, typer.Option(help="Number of brokers.", min=1, max=100)] = 5,
    placement: Annotated[
        str, typer.Option(help="Placement of new subscribers: nearest, round-robin, random or least-loaded.")
    ] = "nearest",
    balance: Annotated[str, typer.Option(help="Balancing: ldm, sdm, affinity or none; ldm+gsh also shuffles.")] = "ldm",
    minutes: Annotated[float, typer.Option(help="Length of the simulated day in real minutes.", min=0.05)] = 3.0,
    speed: Annotated[float, typer.Option(help="Speed of the city, as a multiple of real time.", min=1)] = 10.0,
    map: Annotated[
        Path | None,
        typer.Option("--map", help="Streets as well-known text. Default: a built-in city.", dir_okay=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the day: each seed is another day.", min=0)] = 7,
    out: Annotated[
        Path, typer.Option(help="Folder for the report, the figures and the trace.", file_okay=False)
    ] = Path("out/demo"),
    application: Annotated[
        Path | None, typer.Option(help="Application file. Default: examples/emergency.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run an emergency city on this machine. People move, emergencies happen, and the brokers are balanced.

    Prints the dashboard's address, and a report at the end. On a terminal the dashboard stays until Ctrl-C.
    """
    import asyncio
    import sys
    import tempfile

    from tocsin.demo.report import problems
    from tocsin.demo.settings import DemoSettings, application_file
    from tocsin.runtime.http.listening import loop_factory
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    with failing_on_errors(as_json):
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
        except (OSError, ValueError) as error:
            fail(as_json, str(error), code="bad_request")
    if report is None:
        fail(as_json, "stopped before the end", code="stopped")
    if found := problems(report):
        for problem in found:
            note(f"tocsin: {problem}")
        note(f"tocsin: the report and the logs are in {out}, the seed is {seed}")
        raise typer.Exit(1)


async def _run(settings: DemoSettings, folder: Path, *, stay: bool, as_json: bool) -> dict[str, Any] | None:
    """Run the demo and return its report, or None if a signal ends it. All processes are stopped at the end."""
    from tocsin.demo.requests import explained
    from tocsin.demo.run import DemoRun
    from tocsin.wire.errors import TocsinError

    run = DemoRun(settings, folder, note)
    stop = stop_event()
    try:
        report = await unless_stopped(_run_day(run, settings, as_json), stop)
        if report is not None and stay:
            note(f"the dashboard stays at {run.dashboard}\nPress Ctrl-C to stop.")
            await stop.wait()
        return report
    except Exception as error:
        reason = explained(error)
        if reason is None:
            raise
        logs = settings.out / "logs"
        message = (
            f"{reason.message}. The demo ended early; logs are in {logs}. Fewer --subscribers need less processor."
        )
        raise TocsinError(reason.code, message) from error
    finally:
        await run.stop()


async def _run_day(run: DemoRun, settings: DemoSettings, as_json: bool) -> dict[str, Any]:
    import json

    from tocsin.demo import figures, report

    await run.start()
    outcome = await run.run_day()
    numbers = report.numbers(outcome)
    files = figures.draw(outcome, settings.out)
    page = settings.out / "report.md"
    page.write_text(report.markdown(numbers, outcome.periods, files), encoding="utf-8")
    report.show(numbers, [page, *files])
    if as_json:
        print(json.dumps(numbers | {"files": [str(path) for path in (page, *files)]}), flush=True)
    return numbers
