"""`tocsin site`: run sites on this machine, each from one file: a coordinator, a head and edges."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.console import AsJson, failing_on_errors, note, show
from tocsin.cli.processes import dashboard, stop_event, unless_stopped

if TYPE_CHECKING:
    from tocsin.runtime.stack.sites import Sites


def register(app: typer.Typer) -> None:
    app.command("site")(site)


def site(
    files: Annotated[
        list[Path], typer.Argument(help="TOML files, one per site: `[site]`, `[[neighbour]]` and settings.")
    ],
    as_json: AsJson = False,
) -> None:
    """Run sites on this machine, without a data cluster. Ctrl-C stops them.

    Each file has a table [site] and a table [[neighbour]] for each neighbouring site, which may run elsewhere. Sites
    that are started together make the tokens for each other. `GET /v1/sites` of a coordinator shows its neighbours.
    """
    import asyncio

    from tocsin.runtime.http.logs import configure_logs
    from tocsin.runtime.stack.sites import Sites

    with failing_on_errors(as_json):
        configure_logs("info", "auto")
        asyncio.run(_run(Sites(files), as_json))


async def _run(sites: Sites, as_json: bool) -> None:
    """Run the sites until a signal."""

    async def start() -> bool:
        await sites.start()
        return True

    stop = stop_event()
    try:
        if await unless_stopped(start(), stop):
            described = [site.described() for site in sites.sites.values()]
            show(as_json, {"sites": described}, lambda: _print(sites))
            await stop.wait()
    finally:
        await sites.stop()


def _print(sites: Sites) -> None:
    for name, site in sites.sites.items():
        print(f"Site {name}: {site.stack.coordinator_url} (the administrator's token is in {site.stack.token_file})")
        print(f"  Dashboard: {dashboard(site.stack)}")
        for broker, address in site.stack.described()["brokers"].items():
            print(f"  {broker + ':':12} {address}", flush=True)
    note("Press Ctrl-C to stop.")
