"""Running a server in the foreground, for `tocsin cluster`, `tocsin coordinator` and `tocsin up`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tocsin.cli.output import fail, note, tell
from tocsin.wire.errors import TocsinError

if TYPE_CHECKING:
    from tocsin.runtime.http.settings import ListenerSettings


S = TypeVar("S", bound="ListenerSettings")


class Runs(Protocol):
    async def run(self) -> None: ...


Ready = Callable[[str, str | None], None]


def serve(flags: Mapping[str, Any], settings_file: str | None, as_json: bool) -> None:
    """The data cluster."""
    from tocsin.cluster.server.server import ClusterServer
    from tocsin.cluster.server.settings import ClusterProcessSettings

    run_process("data cluster", ClusterProcessSettings, ClusterServer, flags, settings_file, as_json)


def run_process(
    name: str,
    kind: type[S],
    make: Callable[[S, Ready], Runs],
    flags: Mapping[str, Any],
    settings_file: str | None,
    as_json: bool,
) -> None:
    """Until SIGINT or SIGTERM; the address goes to stdout once everything is up, the first token with it."""
    import os

    from tocsin.runtime.http.event_loop import loop_factory
    from tocsin.runtime.http.logs import configure_logs
    from tocsin.runtime.http.settings import load

    def ready(address: str, first_token: str | None) -> None:
        tell(as_json, {"address": address, "token": first_token}, lambda: _welcome(name, address, first_token))

    try:
        settings = load(kind, flags, os.environ, settings_file)
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    configure_logs(settings.log_level, settings.log_form)

    async def run() -> None:
        await make(settings, ready).run()

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(run())
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    except OSError as error:
        fail(as_json, f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}")


def _welcome(name: str, address: str, first_token: str | None) -> None:
    print(f"Tocsin {name}: {address}", flush=True)
    if first_token is not None:
        print(f"Administrator's token, shown this once: {first_token}", flush=True)
    note("Press Ctrl-C to stop.")
