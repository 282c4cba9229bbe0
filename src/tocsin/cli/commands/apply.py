"""`tocsin apply FILE`: create and drop what an application file declares, on a running data cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tocsin.cli.options import DEFAULT_URL, AsJson, Token, Url
from tocsin.cli.output import fail, fail_with_problems, note, table, tell


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)


def apply(
    file: Annotated[Path, typer.Argument(help="An application file.", exists=True, dir_okay=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check against the cluster, change nothing.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Apply an application file. All of it is checked first: a file with a problem changes nothing."""
    import msgspec

    from tocsin.cli.connection import Answered, ask, connect
    from tocsin.cluster.sql.problems import Problem
    from tocsin.wire.errors import TocsinError

    text = file.read_text(encoding="utf-8")
    body = {"text": text, "file": str(file), "folder": str(file.absolute().parent)}
    try:
        with connect(url, token) as client:
            said = ask(client, "POST", f"/v1/applications?dry_run={str(dry_run).lower()}", json=body)
    except Answered as error:
        problems = error.said["error"].get("problems") if isinstance(error.said, dict) else None
        if problems:
            fail_with_problems(as_json, msgspec.convert(problems, list[Problem]), text)
        fail(as_json, error.message, code=error.code)
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    changes = said.get("changes", [])
    for change in changes:
        for warning in change["warnings"]:
            note(f"warning: {change['kind']} {change['name']}: {warning}")

    def human() -> None:
        if dry_run:
            print(f"{file}: no problems")
        else:
            table(("", "", ""), ((change["action"], change["kind"], change["name"]) for change in changes))

    tell(as_json, {"problems": []} if dry_run else {"changes": changes}, human)
