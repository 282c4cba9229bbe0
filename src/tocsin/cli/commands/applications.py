"""`tocsin check FILE` and `tocsin apply FILE`: check an application file, and apply it to a running data cluster."""

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

ApplicationFile = Annotated[Path, typer.Argument(help="An application file.", exists=True, dir_okay=False)]


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)
    app.command("check")(check)


def check(
    file: ApplicationFile,
    quick: Annotated[bool, typer.Option("--quick", help="Check syntax and names only, without Spark.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check an application file. Checks syntax and names, and whether Spark can run the channels."""
    from tocsin.cluster.sql.declarations import parse_application
    from tocsin.cluster.sql.planning import Definitions, plan

    text = file.read_text(encoding="utf-8")
    with failing_on_errors(as_json):
        _, problems = plan(parse_application(text, str(file)), Definitions({}, {}, {}, {}), str(file))
        if not problems and not quick:  # Spark would only report the same problems half a minute later
            from tocsin.cluster.temporary import check_application

            note("starting Spark to compile the channels…")
            problems = check_application(text, file)
    if problems:
        fail_with_problems(as_json, problems, text)
    show(as_json, {"problems": [], "quick": quick}, lambda: print(f"{file}: no problems"))


def apply(
    file: ApplicationFile,
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
