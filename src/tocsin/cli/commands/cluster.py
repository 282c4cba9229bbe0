"""`tocsin cluster`: run the data cluster."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer

from tocsin.cli.processes import add_server_command, announce_server, run_on_event_loop, run_with_flags

if TYPE_CHECKING:
    from tocsin.cluster.server.settings import ClusterProcessSettings


def register(app: typer.Typer) -> None:
    add_server_command(app, "cluster", cluster)


def cluster(context: typer.Context) -> None:
    """Run the data cluster until it is stopped."""
    from tocsin.cluster.server.settings import ClusterProcessSettings

    run_with_flags(context, ClusterProcessSettings, _run)


def _run(settings: ClusterProcessSettings, as_json: bool) -> None:
    from tocsin.cluster.server.server import ClusterServer

    ready = partial(announce_server, "data cluster", as_json)
    run_on_event_loop(lambda: ClusterServer(settings, ready).run())
