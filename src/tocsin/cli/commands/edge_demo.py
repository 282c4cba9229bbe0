"""`tocsin edge-demo`: smart meters, a tree of edge nodes, Spark, and alerts for the utility (docs/edge.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.console import AsJson, fail, failing_on_errors, note
from tocsin.cli.processes import stop_event, unless_stopped

if TYPE_CHECKING:
    from tocsin.demo.edge_demo import EdgeDemo, EdgeDemoSettings


def register(app: typer.Typer) -> None:
    app.command("edge-demo")(edge_demo)


def edge_demo(
    nodes: Annotated[int, typer.Option(help="Number of edge nodes: 7 or 15.")] = 7,
    meters: Annotated[int, typer.Option(help="Number of smart meters.", min=16)] = 2_000,
    seconds: Annotated[float, typer.Option(help="Length of the run, after the start.", min=20)] = 90.0,
    out: Annotated[Path, typer.Option(help="Folder for the report and the logs.", file_okay=False)] = Path(
        "out/edge-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Run an edge tier on this machine: meters, a tree of nodes, a data cluster, and alerts for the utility.

    Prints the address of the tree view, and a report at the end. On a terminal the page stays until Ctrl-C.
    """
    import asyncio
    import sys
    import tempfile

    from tocsin.demo.edge_demo import EdgeDemoSettings, problems
    from tocsin.runtime.http.listening import loop_factory
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    with failing_on_errors(as_json):
        try:
            settings = EdgeDemoSettings(out, nodes, meters, seconds)
            with (
                tempfile.TemporaryDirectory(prefix="tocsin-edge-demo-") as folder,
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
        note(f"tocsin: the report and the logs are in {out}")
        raise typer.Exit(1)


async def _run(settings: EdgeDemoSettings, folder: Path, *, stay: bool, as_json: bool) -> dict[str, Any] | None:
    """Run the demo and return its report, or None if a signal ends it. All processes are stopped at the end."""
    from tocsin.demo.edge_demo import EdgeDemo
    from tocsin.demo.requests import explained
    from tocsin.wire.errors import TocsinError

    demo = EdgeDemo(settings, folder, note)
    stop = stop_event()
    try:
        report = await unless_stopped(_run_to_the_end(demo, settings, as_json), stop)
        if report is not None and stay:
            note(f"the tree view stays at {demo.page}\nPress Ctrl-C to stop.")
            await stop.wait()
        return report
    except Exception as error:
        reason = explained(error)
        if reason is None:
            raise
        message = f"{reason.message}. The demo ended early; logs are in {settings.out / 'logs'}."
        raise TocsinError(reason.code, message) from error
    finally:
        await demo.stop()


async def _run_to_the_end(demo: EdgeDemo, settings: EdgeDemoSettings, as_json: bool) -> dict[str, Any]:
    from tocsin.demo.edge_demo import sentences

    await demo.start()
    report = await demo.run()
    path = settings.out / "report.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for line in filter(None, sentences(report)):
        print(line, flush=True)
    if as_json:
        print(json.dumps(report | {"files": [str(path)]}), flush=True)
    return report
