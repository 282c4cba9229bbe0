"""A problem in an application file: its position, a message, and what the parser expected instead.

Values and the words of their messages, no parsing. The parsers of this folder create problems; the REST API, `tocsin
apply` and `tocsin check` show them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A line and a column of a text, both from 1. A column counts characters, as editors do."""

    line: int
    column: int

    @classmethod
    def of(cls, text: str, offset: int) -> Self:
        before = text[:offset]
        return cls(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)

    def inside(self, outer: Position) -> Position:
        """Convert a position in a part of a text to one in the whole text. The part starts at `outer`."""
        column = self.column + outer.column - 1 if self.line == 1 else self.column
        return Position(self.line + outer.line - 1, column)


@dataclass(frozen=True, slots=True)
class Problem:
    file: str
    line: int
    column: int
    message: str
    expected: str | None
    """The words that the parser accepts here, if they are few: `KEY, RETAIN or ';'`."""
    code: str
    """Stable, for programs: `syntax`, `unknown-type`, `unused-parameter`, …"""

    @classmethod
    def at(cls, file: str, position: Position, message: str, code: str, expected: str | None = None) -> Self:
        """The message becomes one line: the source text it quotes may contain line breaks."""
        return cls(file, position.line, position.column, " ".join(message.split()), expected, code)

    @property
    def position(self) -> Position:
        return Position(self.line, self.column)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"

    def with_source(self, text: str) -> str:
        """The message, the source line and a caret under the column."""
        lines = text.split("\n")
        line = lines[self.line - 1].rstrip("\r") if self.line <= len(lines) else ""
        # The indent keeps the line's tabs, so the caret is under its column for any tab width.
        indent = "".join("\t" if character == "\t" else " " for character in line[: self.column - 1])
        return f"{self}\n  {line}\n  {indent}^"

    def inside(self, file: str, outer: Position) -> Problem:
        """Convert a problem of a part of `file` to one of the whole file. The part starts at `outer`."""
        position = self.position.inside(outer)
        return replace(self, file=file, line=position.line, column=position.column)


def shortened(written: str, limit: int = 40) -> str:
    return written if len(written) <= limit else f"{written[: limit - 1]}…"


def any_of(words: Iterable[str]) -> str:
    """`KEY, RETAIN or ';'`."""
    *most, last = dict.fromkeys(words)
    return f"{', '.join(most)} or {last}" if most else last


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean KEY?`, or an empty text if no candidate is similar."""
    by_upper = {candidate.upper(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.upper(), by_upper, n=1, cutoff=0.6)
    return f"; did you mean {by_upper[close[0]]}?" if close and close[0] != word.upper() else ""
