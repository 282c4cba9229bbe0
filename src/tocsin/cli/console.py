"""Options and output shared by the commands. `tocsin --help` imports this module, so it imports nothing heavy.

A command prints its result on stdout; with `--json` the last line is one JSON object. Everything else goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import msgspec
import typer

from tocsin.wire.errors import TocsinError

if TYPE_CHECKING:
    from tocsin.cluster.sql.problems import Problem

DEFAULT_URL = "http://127.0.0.1:8571"
DEFAULT_COORDINATOR_URL = "http://127.0.0.1:8570"

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on the last line.")]
Url = Annotated[str, typer.Option("--url", envvar="TOCSIN_URL", help="Address of the data cluster.")]
Coordinator = Annotated[
    str,
    typer.Option("--coordinator", envvar="TOCSIN_COORDINATOR_URL", help="Address of the coordinator, for topics."),
]
CoordinatorUrl = Annotated[
    str, typer.Option("--url", envvar="TOCSIN_COORDINATOR_URL", help="Address of the coordinator.")
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="TOCSIN_TOKEN",
        help="Bearer token. Default: the token file of a server that runs on this machine.",
    ),
]


def show(as_json: bool, content: Mapping[str, Any], show_text: Callable[[], None]) -> None:
    """Print the result of a command: `content` as JSON for a program, or the text for a person."""
    if as_json:
        print(msgspec.json.encode(content).decode(), flush=True)
    else:
        show_text()


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    # rich would cut names to 80 columns in a pipe: use the terminal's width only if there is a terminal.
    console = Console(width=None if sys.stdout.isatty() else 200)
    rich_table = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        rich_table.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(rich_table)


def note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def fail(as_json: bool, message: str, *, code: str = "failed", more: Mapping[str, Any] | None = None) -> NoReturn:
    """Print the error and end the command with exit code 1. `more` is added to the JSON object of the error."""
    note(f"tocsin: {message}")
    if as_json:
        error = {"code": code, "message": message} | dict(more or {})
        print(msgspec.json.encode({"error": error}).decode(), flush=True)
    raise typer.Exit(1)


@contextmanager
def failing_on_errors(as_json: bool) -> Iterator[None]:
    """End the command with `fail` if the block raises a `TocsinError`."""
    try:
        yield
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)


def fail_with_problems(
    as_json: bool, problems: Sequence[Problem], text: str, outcome: str = "nothing was changed"
) -> NoReturn:
    """Print each problem as file:line:column: message, with the line and a caret, and end with exit code 1."""
    for problem in problems:
        note(problem.with_source(text))
    count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    fail(as_json, f"{count}; {outcome}", code="bad_sql", more={"problems": msgspec.to_builtins(problems)})
