"""`tocsin chaos`: inject faults into a real network, and check that no record is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import AsJson, fail, failing_on_errors, note, show, table


def register(app: typer.Typer) -> None:
    app.command("chaos")(chaos)


def chaos(
    rounds: Annotated[int, typer.Option(help="Number of rounds of faults.", min=1)] = 10,
    subscribers: Annotated[int, typer.Option(help="Number of subscribers.", min=1)] = 60,
    brokers: Annotated[int, typer.Option(help="Number of brokers.", min=2)] = 3,
    round_s: Annotated[float, typer.Option(help="Seconds that a round takes.", min=1)] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the schedule of faults.")] = 7,
    cluster_faults: Annotated[
        bool, typer.Option("--cluster-faults/--no-cluster-faults", help="Kill and pause the data cluster too.")
    ] = True,
    repetitive: Annotated[
        bool, typer.Option("--repetitive/--no-repetitive", help="Use a repetitive channel beside the continuous one.")
    ] = True,
    topics: Annotated[
        bool, typer.Option("--topics", help="Break topics instead: their homes, the targets of moves, the coordinator.")
    ] = False,
    workflow: Annotated[
        str, typer.Option(help="With --topics: how topics move (pulsar, epulsar or tocsin).")
    ] = "tocsin",
    replicas: Annotated[
        bool,
        typer.Option("--replicas", help="Break leaders and standbys instead; needs PostgreSQL."),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="Keep data and logs in this folder. Default: delete them at the end.", file_okay=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Break a real network and count lost records. It has a publisher and subscribers.

    lost, duplicated, out_of_order and broken_cursor_rules must be 0: every record that was acknowledged to the
    publisher arrives at every subscription that matches it, once and in order. docs/clients.md describes the faults.

    With --replicas: two data clusters and two coordinators on PostgreSQL; longest_silence_s must be 20 at most.

    With --topics: two_homes, persistent_lost and volatile_lost_untold must be 0 (docs/topics.md).
    """
    import asyncio
    import contextlib
    import tempfile

    from tocsin.chaos.replica_run import ReplicaChaosSettings, replicas_failed, run_replica_chaos
    from tocsin.chaos.run import ChaosSettings, failed, run_chaos
    from tocsin.chaos.topic_run import TopicChaosSettings, run_topic_chaos
    from tocsin.runtime.http.logs import configure_logs

    configure_logs("error")
    settings = ChaosSettings(
        rounds, subscribers, brokers, seed, round_s, cluster_faults=cluster_faults, repetitive=repetitive
    )
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tocsin-chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        with failing_on_errors(as_json):
            try:
                if topics:
                    broken = TopicChaosSettings(rounds, max(4, brokers), seed=seed, workflow=workflow)
                    run = run_topic_chaos(broken, folder, note)
                elif replicas:
                    run = run_replica_chaos(ReplicaChaosSettings(rounds, brokers=brokers, seed=seed), folder, note)
                else:
                    run = run_chaos(settings, folder, note)
                report = asyncio.run(run)
            except asyncio.CancelledError:
                fail(as_json, "stopped before the end", code="stopped")
    show(as_json, report, lambda: table(("", ""), list(report.items())))
    if "stopped" in report:
        note("tocsin: stopped before the end: pending deliveries count as lost")
        raise typer.Exit(1)
    is_wrong = not report["correct"] if topics else replicas_failed(report) if replicas else failed(report)
    if is_wrong:
        note("tocsin: this is a bug; please keep the seed and the logs (--folder)")
        raise typer.Exit(1)
