"""`tocsin chaos`: kill, pause and restart the parts of a real network, and count what became of every record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.output import fail, note, table, tell


def register(app: typer.Typer) -> None:
    app.command("chaos")(chaos)


def chaos(
    rounds: Annotated[int, typer.Option(help="How many rounds of faults.", min=1)] = 10,
    subscribers: Annotated[int, typer.Option(help="How many subscribers.", min=1)] = 60,
    brokers: Annotated[int, typer.Option(help="How many brokers.", min=2)] = 3,
    round_s: Annotated[float, typer.Option(help="Seconds a round takes.", min=1)] = 10.0,
    seed: Annotated[int, typer.Option(help="Another seed is another schedule of faults.")] = 7,
    cluster_faults: Annotated[
        bool, typer.Option("--cluster-faults/--no-cluster-faults", help="Hit the data cluster too.")
    ] = True,
    repetitive: Annotated[
        bool, typer.Option("--repetitive/--no-repetitive", help="A repetitive channel beside the continuous one.")
    ] = True,
    folder: Annotated[
        Path | None, typer.Option(help="Keep data and logs here; else they go with the run.", file_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a data cluster, a coordinator, brokers, a publisher and subscribers while things break; then compare.

    Lost, duplicated and out_of_order must be 0: everything that was acknowledged to the publisher arrives at every
    subscription that matches it, once and in order.
    """
    import asyncio
    import contextlib
    import tempfile

    from tocsin.chaos.run import ChaosSettings, failed, run_chaos
    from tocsin.runtime.http.logs import configure_logs
    from tocsin.wire.errors import TocsinError

    configure_logs("error")
    settings = ChaosSettings(
        rounds, subscribers, brokers, seed, round_s, cluster_faults=cluster_faults, repetitive=repetitive
    )
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            report = asyncio.run(run_chaos(settings, folder, note))
        except TocsinError as error:
            fail(as_json, error.message, code=error.code)
        except asyncio.CancelledError:
            fail(as_json, "stopped before the end", code="stopped")
    tell(as_json, report, lambda: table(("", ""), list(report.items())))
    if failed(report):
        note("tocsin: this is a bug: please keep the seed and the logs (--folder)")
        raise typer.Exit(1)
