"""`tocsin experiment NAME`: reproduce a table or figure of a seed document, as a Spark job over seeds and settings."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tocsin.cli.console import AsJson, note

NOT_JUDGED: Final = 3
"""The exit code of an experiment that could not judge every claim. 0: all were judged; 1: it failed; 2: wrong usage."""


SITE: Final = "epeer-live"
EDGE: Final = "ami-live"
"""These two run on real processes only."""


def register(app: typer.Typer) -> None:
    app.command("experiment")(experiment)


def experiment(
    name: Annotated[str | None, typer.Argument(help="Name of the experiment. Default: list the names.")] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Number of seeds. Default: the experiment's own.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for table, figures and report [out/experiments/NAME].")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the experiment.")
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Run the experiment on real processes. Only some experiments have a live form."),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(help="With --live: real minutes of each run [bad-testbed: 3; epulsar-uav, -mmog: 10].", min=0.1),
    ] = None,
    topics: Annotated[int, typer.Option(help="With --live, epulsar-migration: topics that move.", min=1)] = 128,
    as_json: AsJson = False,
) -> None:
    """Run an experiment of a seed document. Compares our results with the document's claims.

    The exit code is 0 if every claim was judged, whether it holds or not, and 3 if a claim could not be judged.
    """
    from tocsin.experiments import runner
    from tocsin.experiments.bad_testbed_live import WRONG

    if name is None:
        _list(as_json)
        return
    try:
        options = _options(set_ or [])
        if name in (SITE, EDGE):
            live, folder = True, out or Path("out", "experiments", name)
            report = _run_site(folder, options) if name == SITE else _run_edge(folder, options)
        else:
            chosen = runner.find(name)
            folder = out or Path("out", "experiments", f"{chosen.name}-live" if live else chosen.name)
            run_live = partial(_run_live, minutes=minutes, topics=topics)
            report = run_live(chosen, folder, options) if live else _run(chosen, runs, folder, options)
    except (runner.UnknownExperiment, ValueError) as error:
        note(f"tocsin experiment: {error}")
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(report, allow_nan=False))
    else:
        _print(report)
    if live and any(report["metrics"].get(name) for name in (*WRONG, "reordered", "repeated", "out_of_order", "wrong")):
        note(f"tocsin experiment: messages or rows were lost or wrong; see the report and the logs in {folder}")
        raise typer.Exit(1)
    open_claims = [claim["id"] for claim in report["claims"] if claim["holds"] is None]
    if open_claims:
        note(f"tocsin experiment: not judged: {', '.join(open_claims)}")
        raise typer.Exit(NOT_JUDGED)


def _list(as_json: bool) -> None:
    from tocsin.experiments import runner
    from tocsin.experiments.ami_live import LiveEdge
    from tocsin.experiments.epeer_live import LiveSite

    experiments = [runner.find(name) for name in runner.names()]
    on_processes = {SITE: LiveSite.title, EDGE: LiveEdge.title}
    if as_json:
        listed = [{"name": entry.name, "title": entry.title, "runs": entry.default_runs} for entry in experiments]
        print(json.dumps([*listed, *({"name": key, "title": title, "runs": 1} for key, title in on_processes.items())]))
        return
    width = max((len(entry.name) for entry in experiments), default=0)
    for entry in experiments:
        print(f"{entry.name:<{width}}  {entry.title} (default: {entry.default_runs} runs)")
    for key, title in on_processes.items():
        print(f"{key:<{width}}  {title} (on real processes)")


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

    description, unit = TextColumn("{task.description}"), TextColumn("tasks")
    columns = (SpinnerColumn(), description, BarColumn(), MofNCompleteColumn(), unit, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(chosen.name, total=None)
        return runner.run_experiment(
            chosen, runs, folder, options, lambda done, total: bar.update(task, completed=done, total=total)
        )


_LIVE: Final = ("bad-testbed", "epulsar-migration", "epulsar-uav", "epulsar-mmog")


def _run_live(chosen: Any, folder: Path, options: dict[str, str], minutes: float | None, topics: int) -> dict[str, Any]:
    from tocsin.demo import testbed, topic_loops, topic_moves
    from tocsin.runtime.http.logs import configure_logs

    if chosen.name not in _LIVE:
        raise ValueError(f"{chosen.name} has no live form; {', '.join(_LIVE)} have one")
    configure_logs("error")
    folder.mkdir(parents=True, exist_ok=True)
    if chosen.name == "epulsar-migration":
        report: dict[str, Any] = topic_moves.run_live(options, topics, folder, note)
        return report
    if chosen.name != "bad-testbed":
        return topic_loops.run_live(chosen.name, minutes or 10.0, options, folder, note)
    return testbed.run_live(minutes or 3.0, options, folder, note)


def _run_site(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    from tocsin.demo import site_scenarios
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    folder.mkdir(parents=True, exist_ok=True)
    return site_scenarios.run_live(options, folder, note)


def _run_edge(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    from tocsin.demo import edge_scenarios
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    folder.mkdir(parents=True, exist_ok=True)
    return edge_scenarios.run_live(options, folder, note)


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from tocsin.experiments.report import shown

    console = Console()
    title = f"{report['experiment']}, {report['runs']} runs"
    columns = ("claim", "the seed document", "ours", "as good", "within 1.5", "holds", "decided by our choice of")
    claims = Table(*columns, title=title)
    for claim in report["claims"]:
        name = f"{claim['id']}\n{claim['source']}".replace("[", "\\[")
        bounds = (shown(claim["at_least_as_good"]), shown(claim["within_factor"]))
        claims.add_row(
            name, claim["seed_document"], shown(claim["ours"]), *bounds, _verdict(claim), claim["decided_by"]
        )
    console.print(claims)
    for key, value in sorted(report["metrics"].items()):
        console.print(f"  {key} = {shown(value)}", highlight=False, markup=False)
    for path in report["files"]:
        console.print(f"  wrote {path}", highlight=False, markup=False, soft_wrap=True)


def _verdict(claim: dict[str, Any]) -> str:
    if claim["holds"] is None:
        return f"not judged: {claim['differs']}"
    return "yes" if claim["holds"] else f"NO: {claim['differs']}"
