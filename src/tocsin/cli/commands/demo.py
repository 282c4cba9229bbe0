"""`tocsin demo`: the emergency city on a network of real processes, with a report at the end (docs/demo.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.console import AsJson, note
from tocsin.cli.demonstration import Demonstration, demonstrate

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
    from tocsin.demo.report import problems
    from tocsin.demo.settings import DemoSettings, application_file

    def make(folder: Path) -> Demonstration:
        from tocsin.demo.run import DemoRun

        settings = DemoSettings(
            application_file(application), out, subscribers, brokers, placement, balance, minutes, speed, seed, map
        )
        settings.check()
        run = DemoRun(settings, folder, note)
        return Demonstration(
            run=lambda: _run_day(run, settings, as_json),
            stop=run.stop,
            page=lambda: f"the dashboard stays at {run.dashboard}",
            out=out,
            advice=" Fewer --subscribers need less processor.",
        )

    demonstrate(make, problems, out, as_json, remark=f", the seed is {seed}")


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
