"""`tocsin experiment NAME`: reproduce a table or figure of a seed document, as a Spark job over seeds and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    app.command()(experiment)


def experiment(
    name: Annotated[str | None, typer.Argument(help="Which experiment; without a name, the list of them.")] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="How many seeds; the experiment's own number if left out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for table, figures and report [out/experiments/NAME].")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the experiment.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="bad-testbed on a network of real processes instead of simulated.")
    ] = False,
    minutes: Annotated[float, typer.Option(help="With --live: real time of each run.", min=0.1)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
) -> None:
    """Run an experiment and say which of the seed document's claims hold here."""
    from tocsin.experiments import runner

    if name is None:
        _list(as_json)
        return
    try:
        chosen = runner.find(name)
        options = _options(set_ or [])
        folder = Path("out") / "experiments" / (f"{chosen.name}-live" if live else chosen.name) if out is None else out
        answer = _run_live(chosen, folder, options, minutes) if live else _run(chosen, runs, folder, options)
    except (runner.UnknownExperiment, ValueError) as error:
        typer.echo(f"tocsin experiment: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
    else:
        _show(answer)


def _list(as_json: bool) -> None:
    from tocsin.experiments import runner

    found = [runner.find(name) for name in runner.names()]
    if as_json:
        typer.echo(json.dumps([{"name": one.name, "title": one.title, "runs": one.default_runs} for one in found]))
        return
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        typer.echo(f"{one.name:<{width}}  {one.title} (default: {one.default_runs} runs)")


def _options(pairs: list[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"{pair!r} is not KEY=VALUE")
        options[key] = value
    return options


def _run(chosen: Any, runs: int | None, folder: Path, options: dict[str, str]) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from tocsin.experiments import runner

    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(chosen.name, total=None)
        return runner.run_experiment(
            chosen, runs, folder, options, lambda done, total: bar.update(task, completed=done, total=total)
        )


def _run_live(chosen: Any, folder: Path, options: dict[str, str], minutes: float) -> dict[str, Any]:
    from tocsin.cli.output import note
    from tocsin.demo.testbed import run_live
    from tocsin.runtime.http.logs import configure_logs

    if chosen.name != "bad-testbed":
        raise ValueError(f"{chosen.name} has no live form; bad-testbed has")
    configure_logs("error")
    folder.mkdir(parents=True, exist_ok=True)
    return run_live(minutes, int(options.pop("seed", "7")), options, folder, note)


def _show(answer: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from tocsin.experiments.report import shown

    console = Console()
    claims = Table(
        "claim", "the seed document", "ours", "holds", title=f"{answer['experiment']}, {answer['runs']} runs"
    )
    for claim in answer["claims"]:
        verdict = "yes" if claim["holds"] else f"NO: {claim['differs']}"
        claims.add_row(
            f"{claim['id']}\n{claim['source']}".replace("[", "\\["),
            claim["seed_document"],
            shown(claim["ours"]),
            verdict,
        )
    console.print(claims)
    for key, value in sorted(answer["metrics"].items()):
        console.print(f"  {key} = {shown(value)}", highlight=False, markup=False)
    for path in answer["files"]:
        console.print(f"  wrote {path}", highlight=False, markup=False, soft_wrap=True)
