"""`tocsin restored`: run it after a data root was restored from a copy, before the data cluster starts."""

from __future__ import annotations

from typing import Annotated

import typer

from tocsin.cli.console import AsJson, failing_on_errors, show


def register(app: typer.Typer) -> None:
    app.command("restored")(restored)


def restored(
    root: Annotated[str | None, typer.Option(help="Data root: a folder or a URI.")] = None,
    state: Annotated[str | None, typer.Option(help="State folder, if it is not inside the root.")] = None,
    catalog: Annotated[str | None, typer.Option(help="SQLAlchemy URL of the catalog, if it is not SQLite.")] = None,
    settings: Annotated[str | None, typer.Option(help="TOML file with a [cluster] table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start new epochs after a restore. Run it when the data root was restored from an older copy.

    Cursors may point to results that are newer than the copy. Without new epochs such a cursor would silently skip
    new results; with them its subscriber gets a gap notice.
    """
    import os
    import time

    from tocsin.cluster.restored import start_new_epochs
    from tocsin.cluster.server.settings import ClusterProcessSettings
    from tocsin.runtime.http.settings import load_settings

    flags = {"root": root, "state": state, "catalog": catalog}
    with failing_on_errors(as_json):
        loaded = load_settings(ClusterProcessSettings, flags, os.environ, settings)
        channels = start_new_epochs(loaded.cluster, time.time())
    text = f"{len(channels)} channels start a new epoch: {', '.join(channels) or 'there are none'}"
    show(as_json, {"channels": channels}, lambda: print(text))
