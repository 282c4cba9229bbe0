"""How commands speak: results on stdout, with `--json` one object as the last line; everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import typer

if TYPE_CHECKING:
    from tocsin.cluster.sql.problems import Problem


def tell(as_json: bool, content: Mapping[str, Any], human: Callable[[], None]) -> None:
    """The result of a command, for a program or for a person."""
    if as_json:
        print(msgspec.json.encode(content).decode(), flush=True)
    else:
        human()


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    # Narrow pipes must not cut names: the width of a terminal counts only when there is one.
    console = Console(width=None if sys.stdout.isatty() else 200)
    drawn = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        drawn.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(drawn)


def note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def fail(as_json: bool, message: str, *, code: str = "failed", more: Mapping[str, Any] | None = None) -> NoReturn:
    note(f"tocsin: {message}")
    if as_json:
        error = {"code": code, "message": message} | dict(more or {})
        print(msgspec.json.encode({"error": error}).decode(), flush=True)
    raise typer.Exit(1)


def fail_with_problems(as_json: bool, problems: Sequence[Problem], text: str) -> NoReturn:
    """Each problem as file:line:column: message, with the line and a caret."""
    for problem in problems:
        note(problem.with_source(text))
    number = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    fail(as_json, f"{number}; nothing was changed", code="bad_sql", more={"problems": msgspec.to_builtins(problems)})
