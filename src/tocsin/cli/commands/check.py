"""`tocsin check FILE`: is an application file right? Needs no running data cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli.options import AsJson
from tocsin.cli.output import fail, fail_with_problems, note, tell

if TYPE_CHECKING:
    from tocsin.cluster.sql.problems import Problem


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    file: Annotated[Path, typer.Argument(help="An application file.", exists=True, dir_okay=False)],
    quick: Annotated[bool, typer.Option("--quick", help="Syntax and names only: Spark is not started.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check an application file on its own: syntax, names, and whether Spark can run its channels."""
    from tocsin.wire.errors import TocsinError

    text = file.read_text(encoding="utf-8")
    try:
        problems = _quickly(text, str(file)) if quick else _with_spark(text, file)
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)
    if problems:
        fail_with_problems(as_json, problems, text)
    tell(as_json, {"problems": [], "quick": quick}, lambda: print(f"{file}: no problems"))


def _quickly(text: str, file: str) -> list[Problem]:
    from tocsin.cluster.sql.declarations import parse_application
    from tocsin.cluster.sql.planning import Definitions, plan

    return plan(parse_application(text, file), Definitions({}, {}, {}, {}), file)[1]


def _with_spark(text: str, file: Path) -> list[Problem]:
    import tempfile
    import time

    problems = _quickly(text, str(file))
    if problems:  # Spark would only repeat them, half a minute later
        return problems
    from tocsin.cluster.applying import check as check_with
    from tocsin.cluster.engine import DataCluster
    from tocsin.cluster.settings import ClusterSettings
    from tocsin.cluster.spark.session import make_session

    note("starting Spark to compile the channels…")
    session = make_session("local[1]", {"spark.driver.memory": "1g"})
    try:
        with tempfile.TemporaryDirectory(prefix="tocsin-check-") as root:
            cluster = DataCluster(session, ClusterSettings(root=root), time.time)
            try:
                return check_with(cluster, text, str(file), str(file.absolute().parent))
            finally:
                cluster.close()
    finally:
        session.stop()
