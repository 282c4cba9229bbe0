"""`tocsin up`: run a whole network on this machine, and restart processes that die."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.console import AsJson, failing_on_errors, note, show
from tocsin.cli.processes import dashboard, stop_event, unless_stopped

if TYPE_CHECKING:
    from tocsin.runtime.stack.postgresql import LocalPostgresql
    from tocsin.runtime.stack.stack import Stack


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    brokers: Annotated[int, typer.Option(help="Number of brokers.", min=0, max=100)] = 3,
    root: Annotated[
        str | None, typer.Option(help="Data root. Default: TOCSIN_ROOT, else tocsin-data.", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the data cluster; 0 takes free ports for all processes.", show_default=False),
    ] = None,
    settings: Annotated[str | None, typer.Option(help="TOML file with a table for each kind of process.")] = None,
    site: Annotated[
        bool, typer.Option("--site", help="The first broker is the head of a site, the others are edges.")
    ] = False,
    replicas: Annotated[
        bool,
        typer.Option("--replicas", help="Run two data clusters, coordinators and result servers. Needs PostgreSQL."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a whole network on this machine. Starts a data cluster, a coordinator and brokers; Ctrl-C stops them.

    The first start prints the administrator's token once; every process accepts it. A process that dies is started
    again. Each process also has its own command: `tocsin cluster`, `tocsin coordinator`, `tocsin broker`.
    """
    import asyncio
    import os

    from tocsin.cluster.server.settings import ClusterProcessSettings
    from tocsin.runtime.http.logs import configure_logs
    from tocsin.runtime.http.settings import load_settings
    from tocsin.runtime.stack.postgresql import LocalPostgresql
    from tocsin.runtime.stack.sites import site_roles
    from tocsin.runtime.stack.stack import Stack, StackSettings

    with failing_on_errors(as_json):
        loaded = load_settings(ClusterProcessSettings, {"root": root, "port": port}, os.environ, settings)
        configure_logs(loaded.log_level, loaded.log_form)
        database = LocalPostgresql(Path(loaded.cluster.root)) if replicas else None
        stack_settings = StackSettings(
            Path(loaded.cluster.root),
            brokers,
            cluster_port=loaded.port,
            free_ports=loaded.port == 0,
            settings=settings,
            broker_flags=site_roles(brokers) if site else {},
            replicas=None if database is None else database.url,
        )
        asyncio.run(_run(Stack(stack_settings), database, as_json))


async def _run(stack: Stack, database: LocalPostgresql | None, as_json: bool) -> None:
    """Run the network until a signal."""

    async def start() -> bool:
        if database is not None:
            await database.start()
        await stack.start()
        return True

    stop = stop_event()
    try:
        if await unless_stopped(start(), stop):
            show(as_json, stack.described(), lambda: _print(stack))
            await stop.wait()
    finally:
        await stack.stop()
        if database is not None:
            await database.stop()


def _print(stack: Stack) -> None:
    description = stack.described()
    print(f"Tocsin data cluster: {description['address']}")
    print(f"Coordinator:         {description['coordinator']}")
    for name, address in description["brokers"].items():
        print(f"{name + ':':20} {address}")
    print(f"Dashboard:           {dashboard(stack)}")
    if description["token"] is not None:
        print(f"Administrator's token, shown this once: {description['token']}")
    print(f"Commands on this machine read the token from {description['token_file']}. Continue with", flush=True)
    for line in ("apply app.sql", "publish DATASET < records.jsonl", "subscribe CHANNEL name=value", "status"):
        print(f"  tocsin {line}", flush=True)
    note("Press Ctrl-C to stop.")
