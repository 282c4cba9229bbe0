"""`tocsin apply FILE`: create and drop what an application file declares, on a running data cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.console import (
    DEFAULT_URL,
    AsJson,
    Token,
    Url,
    fail_with_problems,
    failing_on_errors,
    note,
    show,
    table,
)


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)


def apply(
    file: Annotated[Path, typer.Argument(help="An application file.", exists=True, dir_okay=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file against the data cluster and change nothing.")
    ] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Apply an application file. The whole file is checked first: a file with a problem changes nothing."""
    import msgspec

    from tocsin.cli.connection import ErrorReply, ask, connect
    from tocsin.cluster.sql.problems import Problem

    text = file.read_text(encoding="utf-8")
    body = {"text": text, "file": str(file), "folder": str(file.absolute().parent)}
    with failing_on_errors(as_json), connect(url, token) as client:
        try:
            reply = ask(client, "POST", f"/v1/applications?dry_run={str(dry_run).lower()}", json=body)
        except ErrorReply as error:
            problems = error.body["error"].get("problems") if isinstance(error.body, dict) else None
            if not problems:
                raise
            fail_with_problems(as_json, msgspec.convert(problems, list[Problem]), text)
    changes = reply.get("changes", [])
    for change in changes:
        for warning in change["warnings"]:
            note(f"warning: {change['kind']} {change['name']}: {warning}")

    def show_text() -> None:
        if dry_run:
            print(f"{file}: no problems")
        else:
            table(("", "", ""), ((change["action"], change["kind"], change["name"]) for change in changes))

    show(as_json, {"problems": []} if dry_run else {"changes": changes}, show_text)
