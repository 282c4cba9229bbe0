"""What is wrong in an application file, where, and what was expected instead.

Values only. The parsers of this folder make them; the command line, the REST API and `tocsin check` show them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a text, both counted from 1. A column counts characters, as editors do."""

    line: int
    column: int

    @classmethod
    def of(cls, text: str, offset: int) -> Self:
        before = text[:offset]
        return cls(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)

    def inside(self, outer: Position) -> Position:
        """This place, which was counted in a part of a text that starts at `outer`, counted in the whole text."""
        column = self.column + outer.column - 1 if self.line == 1 else self.column
        return Position(self.line + outer.line - 1, column)


@dataclass(frozen=True, slots=True)
class Problem:
    file: str
    line: int
    column: int
    message: str
    expected: str | None
    """What would have been right here, when that can be said in a few words: `KEY, RETAIN or ';'`."""
    code: str
    """Stable, for programs: `syntax`, `unknown-type`, `unused-parameter`…"""

    @property
    def position(self) -> Position:
        return Position(self.line, self.column)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"

    def with_source(self, text: str) -> str:
        """The message, the line it is about and a caret under the place."""
        lines = text.split("\n")
        line = lines[self.line - 1].rstrip("\r") if self.line <= len(lines) else ""
        # Tabs are kept in the indent, so the caret stands right whatever a tab's width is.
        indent = "".join("\t" if character == "\t" else " " for character in line[: self.column - 1])
        return f"{self}\n  {line}\n  {indent}^"

    def inside(self, file: str, outer: Position) -> Problem:
        """The same problem, found in a part of `file` that starts at `outer`."""
        place = self.position.inside(outer)
        return replace(self, file=file, line=place.line, column=place.column)


def one_line(message: str) -> str:
    """A message quotes what was written, which may run over several lines."""
    return " ".join(message.split())


def shortened(written: str, limit: int = 40) -> str:
    return written if len(written) <= limit else f"{written[: limit - 1]}…"


def any_of(words: Iterable[str]) -> str:
    """`KEY, RETAIN or ';'`."""
    *most, last = dict.fromkeys(words)
    return f"{', '.join(most)} or {last}" if most else last


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean KEY?`, or nothing when no candidate is close."""
    by_upper = {candidate.upper(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.upper(), by_upper, n=1, cutoff=0.6)
    return f"; did you mean {by_upper[close[0]]}?" if close and close[0] != word.upper() else ""
