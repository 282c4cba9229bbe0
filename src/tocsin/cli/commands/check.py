"""`tocsin check FILE`: check an application file without a running data cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.console import AsJson, fail_with_problems, failing_on_errors, note, show

if TYPE_CHECKING:
    from tocsin.cluster.sql.problems import Problem


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    file: Annotated[Path, typer.Argument(help="An application file.", exists=True, dir_okay=False)],
    quick: Annotated[bool, typer.Option("--quick", help="Check syntax and names only, without Spark.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check an application file on its own: syntax, names, and whether Spark can run its channels."""
    text = file.read_text(encoding="utf-8")
    with failing_on_errors(as_json):
        problems = _check_without_spark(text, str(file))
        if not problems and not quick:  # Spark would only report the same problems half a minute later
            problems = _check_with_spark(text, file)
    if problems:
        fail_with_problems(as_json, problems, text)
    show(as_json, {"problems": [], "quick": quick}, lambda: print(f"{file}: no problems"))


def _check_without_spark(text: str, file: str) -> list[Problem]:
    from tocsin.cluster.sql.declarations import parse_application
    from tocsin.cluster.sql.planning import World, plan

    return plan(parse_application(text, file), World({}, {}, {}, {}), file)[1]


def _check_with_spark(text: str, file: Path) -> list[Problem]:
    from tocsin.cluster.temporary import check_application

    note("starting Spark to compile the channels…")
    return check_application(text, file)
