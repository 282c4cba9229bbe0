"""Spark's own lexical rules, so that Tocsin and Spark split a channel query into the same pieces.

sqlglot parses the query and Spark runs it, and their tokenizers differ: in escapes, raw strings, dollar quotes, names
that start with a digit, comments that continue after a backslash. Text that one of them takes for a comment or a string
could then be code for the other. Two rules prevent that:
- Comments never reach a parser. `lex` finds them, and `Lexed.text` has blanks in their place.
- `disagreement` compares the names, strings and quoted names of another tokenizer with those of these rules. A query on
  which they differ is refused. `cluster.spark.query_check` compares in the same way with Spark's own tokenizer.

Not a parser. `lex` never raises. `tokens` and `query_scan` call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

_BLANKS = " \t\r\n\f"
_SYMBOLS = "+-*/%=<>!~^&|()[],.;:?"
_NUMBER = re.compile(r"(?:\d+\.\d*|\.\d+|\d+)(?:E[+-]?\d+)?(?:BD|[LSYFD])?", re.IGNORECASE | re.ASCII)
_HINT = re.compile(r"/\*\+[\w\s,.()]*\*/", re.ASCII)
_PREFIXES = "RXrx"
"""Letters that change the meaning of a string directly after them: a raw string and a hexadecimal one."""


class LexemeKind(Enum):
    WORD = "word"
    NUMBER = "number"
    STRING = "string"
    """With its prefix, if it has one."""
    QUOTED = "quoted"
    """A name between backticks."""
    HINT = "hint"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class Lexeme:
    kind: LexemeKind
    start: int
    end: int
    """The offset after the last character."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """Text that Spark reads in another way than other tokenizers, or not at all. A channel query may not contain it."""

    start: int
    message: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A string, quoted name or comment that the text opens and never closes."""

    what: str
    """The kind of text, for messages: `a string`, `a quoted name` or `a comment`."""
    closing: str
    """The text that would close it; empty if the text cannot be read at all."""
    start: int

    @property
    def message(self) -> str:
        return f"{self.what} is opened here and never closed" if self.closing else f"{self.what} cannot be read"


@dataclass(frozen=True, slots=True)
class Lexed:
    text: str
    """The text with blanks in place of comments: the same length and the same lines, so that offsets stay valid."""
    lexemes: tuple[Lexeme, ...]
    unclear: tuple[Unclear, ...]
    unfinished: Unfinished | None


def lex(text: str) -> Lexed:
    return _Lexer(text).run()


def disagreement(lexemes: Iterable[Lexeme], others: Iterable[tuple[int, int]]) -> int | None:
    """The first offset at which another tokenizer's names and strings (start, end) differ from these; None if nowhere.

    Adjacent strings count as one string: Spark reads `'a''b'` as one, other tokenizers as two.
    """
    names = (LexemeKind.WORD, LexemeKind.STRING, LexemeKind.QUOTED)
    ours = _joined((lexeme.start, lexeme.end) for lexeme in lexemes if lexeme.kind in names)
    theirs = _joined(others)
    if ours == theirs:
        return None
    differing = {offset for span in set(ours) ^ set(theirs) for offset in span[:1]}
    return min(differing, default=0)


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans that touch."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._kept: list[str] = []
        self._lexemes: list[Lexeme] = []
        self._unclear: list[Unclear] = []

    def run(self) -> Lexed:
        position, unfinished = 0, None
        while position < len(self._text) and unfinished is None:
            step = self._next(position)
            if isinstance(step, Unfinished):
                unfinished = step
                self._kept.append(self._text[position:])
            else:
                position = step
        return Lexed("".join(self._kept), tuple(self._lexemes), tuple(self._unclear), unfinished)

    def _next(self, start: int) -> int | Unfinished:
        """Read what starts here and return the offset after it."""
        text, character = self._text, self._text[start]
        if text.startswith("--", start):
            return self._blank(start, _end_of_line(text, start))
        if text.startswith("/*", start):
            return self._comment_or_hint(start)
        if character in "'\"`":
            return self._quoted(start, start)
        if character in _PREFIXES and text[start + 1 : start + 2] in ("'", '"'):
            return self._quoted(start, start + 1)
        if character in "0123456789" or (character == "." and _is_digit(text[start + 1 : start + 2])):
            return self._number(start)
        if _in_word(character):
            return self._word(start)
        return self._symbol(start)

    def _keep(self, kind: LexemeKind | None, start: int, end: int) -> int:
        self._kept.append(self._text[start:end])
        if kind is not None:
            self._lexemes.append(Lexeme(kind, start, end))
        return end

    def _blank(self, start: int, end: int) -> int:
        self._kept.append(re.sub(r"[^\r\n]", " ", self._text[start:end]))
        return end

    def _refuse(self, start: int, message: str) -> None:
        self._unclear.append(Unclear(start, message))

    def _comment_or_hint(self, start: int) -> int | Unfinished:
        if self._text.startswith("/*+", start):
            hint = _HINT.match(self._text, start)
            if hint is not None:
                return self._keep(LexemeKind.HINT, start, hint.end())
            self._refuse(start, "a hint may contain only names, numbers, commas, dots and parentheses")
        end = _end_of_comment(self._text, start)
        return Unfinished("a comment", "*/", start) if end is None else self._blank(start, end)

    def _quoted(self, start: int, opening: int) -> int | Unfinished:
        quote = self._text[opening]
        raw = opening > start and self._text[start] in "rR"
        end = _end_of_quoted(self._text, opening, escapes=quote != "`" and not raw, doubled=not raw)
        if end is None:
            return Unfinished("a quoted name" if quote == "`" else "a string", quote, opening)
        return self._keep(LexemeKind.QUOTED if quote == "`" else LexemeKind.STRING, start, end)

    def _number(self, start: int) -> int:
        number = _NUMBER.match(self._text, start)
        end = start + 1 if number is None else number.end()
        if end < len(self._text) and _in_word(self._text[end]):
            self._refuse(start, "a name cannot start with a digit: write it between backticks, or add a blank")
        return self._keep(LexemeKind.NUMBER, start, end)

    def _word(self, start: int) -> int:
        end = start + 1
        while end < len(self._text) and _in_word(self._text[end]):
            end += 1
        if self._text.startswith("://", end):
            self._refuse(start, "an address is not a name: a channel reads declared datasets")
        return self._keep(LexemeKind.WORD, start, end)

    def _symbol(self, start: int) -> int:
        character = self._text[start]
        if character == "\ufeff":  # the byte order mark, which some editors write
            self._kept.append(" ")
            return start + 1
        if character in _BLANKS:
            return self._keep(None, start, start + 1)
        if character not in _SYMBOLS:
            shown = character if character.isprintable() else f"U+{ord(character):04X}"
            self._refuse(start, f"the character '{shown}' is allowed only in a string or between backticks")
        return self._keep(LexemeKind.SYMBOL, start, start + 1)


def _in_word(character: str) -> bool:
    return character == "_" or character.isalpha() or _is_digit(character)


def _is_digit(character: str) -> bool:
    return character in set("0123456789")


def _end_of_line(text: str, start: int) -> int:
    """The offset of the line break that ends a `--` comment. A backslash before it does not continue the comment."""
    ends = [end for end in (text.find("\n", start), text.find("\r", start)) if end >= 0]
    return min(ends, default=len(text))


def _end_of_comment(text: str, start: int) -> int | None:
    """The offset after the closing `*/`, or None if there is none. Comments nest, as in Spark."""
    depth, position = 1, start + 2
    while depth:
        opening, closing = text.find("/*", position), text.find("*/", position)
        if closing < 0:
            return None
        if 0 <= opening < closing:
            depth, position = depth + 1, opening + 2
        else:
            depth, position = depth - 1, closing + 2
    return position


def _end_of_quoted(text: str, opening: int, *, escapes: bool, doubled: bool) -> int | None:
    """The offset after the closing quote, or None if there is none. A doubled quote is part of the text."""
    quote, position = text[opening], opening + 1
    while position < len(text):
        if text[position] == "\\" and escapes:
            position += 2
        elif text[position] != quote:
            position += 1
        elif doubled and text.startswith(quote, position + 1):
            position += 2
        else:
            return position + 1
    return None
