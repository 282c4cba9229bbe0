"""`tocsin coordinator`: run the coordinator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer

from tocsin.cli.processes import add_server_command, announce_server, run_on_event_loop, run_with_flags

if TYPE_CHECKING:
    from tocsin.runtime.coordinator.settings import CoordinatorSettings


def register(app: typer.Typer) -> None:
    add_server_command(app, "coordinator", coordinator)


def coordinator(context: typer.Context) -> None:
    """Run the coordinator until it is stopped."""
    from tocsin.runtime.coordinator.settings import CoordinatorSettings

    run_with_flags(context, CoordinatorSettings, _run)


def _run(settings: CoordinatorSettings, as_json: bool) -> None:
    from tocsin.runtime.coordinator.server import CoordinatorServer
    from tocsin.web import PAGES

    ready = partial(announce_server, "coordinator", as_json)
    run_on_event_loop(lambda: CoordinatorServer(settings, ready, pages=PAGES).run())
