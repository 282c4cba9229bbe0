"""`tocsin broker`: run a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tocsin.cli.console import note, show
from tocsin.cli.processes import add_server_command, run_on_event_loop, run_with_flags

if TYPE_CHECKING:
    from tocsin.runtime.broker.settings import BrokerSettings


def register(app: typer.Typer) -> None:
    add_server_command(app, "broker", broker)


def broker(context: typer.Context) -> None:
    """Run a broker until it is stopped."""
    from tocsin.runtime.broker.settings import BrokerSettings

    run_with_flags(context, BrokerSettings, _run)


def _run(settings: BrokerSettings, as_json: bool) -> None:
    from tocsin.runtime.broker.server import BrokerServer

    def ready(address: str) -> None:
        show(as_json, {"broker": settings.id, "address": address}, lambda: _welcome(settings.id, address))

    run_on_event_loop(lambda: BrokerServer(settings, ready).run())


def _welcome(name: str, address: str) -> None:
    print(f"Tocsin broker {name}: {address}", flush=True)
    note("Press Ctrl-C to stop.")
