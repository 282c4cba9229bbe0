"""`tocsin edge-demo`: smart meters, a tree of edge nodes, Spark, and alerts for the utility (docs/edge.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.console import AsJson, note
from tocsin.cli.demonstration import Demonstration, demonstrate

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
    from tocsin.demo.edge_demo import EdgeDemoSettings, problems

    def make(folder: Path) -> Demonstration:
        from tocsin.demo.edge_demo import EdgeDemo

        settings = EdgeDemoSettings(out, nodes, meters, seconds)
        demo = EdgeDemo(settings, folder, note)
        return Demonstration(
            run=lambda: _run_to_the_end(demo, settings, as_json),
            stop=demo.stop,
            page=lambda: f"the tree view stays at {demo.page}",
            out=out,
        )

    demonstrate(make, problems, out, as_json)


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
