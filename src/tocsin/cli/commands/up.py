"""`tocsin up`: everything on this machine. For now that is the data cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.serving import serve


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    root: Annotated[str | None, typer.Option(help="Where data lies.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.", show_default=False)] = None,
    settings: Annotated[str | None, typer.Option(help="TOML file with a [cluster] table.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start Tocsin on this machine; Ctrl-C stops it. The first start prints the administrator's token, once."""
    serve({"root": root, "port": port}, settings, as_json)
