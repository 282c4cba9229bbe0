"""`tocsin restored`: after an older copy of a data root was put back, and before the data cluster is started on it."""

from __future__ import annotations

from typing import Annotated

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.output import fail, tell


def register(app: typer.Typer) -> None:
    app.command("restored")(restored)


def restored(
    root: Annotated[str | None, typer.Option(help="Where data lies: a folder or a URI.")] = None,
    state: Annotated[str | None, typer.Option(help="The state folder, if it is not in the root.")] = None,
    catalog: Annotated[str | None, typer.Option(help="SQLAlchemy URL of the catalog, if it has one.")] = None,
    settings: Annotated[str | None, typer.Option(help="TOML file with a [cluster] table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say that a data root was put back from a copy: every channel begins a new life.

    Without it, cursors into what came after the copy would be taken for cursors into what comes now, and results would
    be passed over in silence. With it everybody who has one is told of a gap.
    """
    import os
    import time

    from tocsin.cluster.engine import start_new_epochs
    from tocsin.cluster.server.settings import ClusterProcessSettings
    from tocsin.runtime.http.settings import load
    from tocsin.wire.errors import TocsinError

    try:
        flags = {"root": root, "state": state, "catalog": catalog}
        channels = start_new_epochs(load(ClusterProcessSettings, flags, os.environ, settings).cluster(), time.time())
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    told = f"{len(channels)} channels begin a new life: {', '.join(channels) or 'there are none'}"
    tell(as_json, {"channels": channels}, lambda: print(told))
