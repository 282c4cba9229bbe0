"""Options that several commands share. Imports nothing heavy: `tocsin --help` reads it."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_URL = "http://127.0.0.1:8571"
DEFAULT_COORDINATOR_URL = "http://127.0.0.1:8570"

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
Url = Annotated[str, typer.Option("--url", envvar="TOCSIN_URL", help="Address of the data cluster.")]
CoordinatorUrl = Annotated[
    str, typer.Option("--url", envvar="TOCSIN_COORDINATOR_URL", help="Address of the coordinator.")
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="TOCSIN_TOKEN", help="Bearer token; else the server's own file, if it is on this machine."
    ),
]
