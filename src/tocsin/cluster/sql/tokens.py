"""Splits an SQL text into Spark's tokens, with the offset of each token in the text.

Not a parser. `scan` never raises: for a text that ends inside a string or a comment it returns the tokens before that
string or comment, and the offset where it opens. sqlglot cannot do this alone. It reports the line and column of a
token's *end*, and it rejects an unfinished text as a whole, without an offset. So this module looks for unfinished
strings and comments first. The parsers of application files and of channel queries call it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from sqlglot import Token as SqlglotToken
from sqlglot import TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

SPARK = Spark()

_STRINGS = {
    TokenType.STRING,
    TokenType.RAW_STRING,
    TokenType.HEREDOC_STRING,
    TokenType.NATIONAL_STRING,
    TokenType.UNICODE_STRING,
    TokenType.BYTE_STRING,
    TokenType.BIT_STRING,
    TokenType.HEX_STRING,
}


class TokenKind(Enum):
    WORD = "word"
    """A keyword or a plain name."""
    QUOTED = "quoted"
    """A name between backticks."""
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    text: str
    """The name without its backticks, the string's value, or the token as written."""
    start: int
    end: int
    """Offset after the last character."""

    @property
    def upper(self) -> str:
        """The token as a keyword, in upper case; empty for strings and quoted names, which are never keywords."""
        return self.text.upper() if self.kind is TokenKind.WORD else ""

    @property
    def is_identifier(self) -> bool:
        return self.kind in (TokenKind.WORD, TokenKind.QUOTED)

    def is_symbol(self, text: str) -> bool:
        return self.kind is TokenKind.SYMBOL and self.text == text


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` (exclusive) of a text."""

    start: int
    end: int

    def holds(self, offset: int) -> bool:
        return self.start <= offset < self.end


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A string, quoted name or comment that the text opens and never closes."""

    what: str
    """The kind of text, for messages: `a string`, `a quoted name` or `a comment`."""
    closing: str
    start: int


@dataclass(frozen=True, slots=True)
class Scan:
    tokens: tuple[Token, ...]
    unfinished: Unfinished | None


def scan(text: str) -> Scan:
    unfinished = _find_unfinished(text)
    readable = text if unfinished is None else text[: unfinished.start]
    try:
        tokens = spark_tokens(readable)
    except SqlglotError:
        # sqlglot rejects a literal that `_find_unfinished` accepts: the offsets after it are unknown.
        return Scan((), unfinished or Unfinished("text that is not SQL", "", 0))
    # sqlglot splits `1L` into three tokens with the same offset (`1 :: BIGINT`): keep the first.
    by_start = {token.start: token for token in reversed(tokens)}
    return Scan(tuple(part for start in sorted(by_start) for part in _split(by_start[start], readable)), unfinished)


def spark_tokens(text: str) -> list[SqlglotToken]:
    """sqlglot's own tokens, for sqlglot's parser. A byte order mark, which some editors write, counts as a space."""
    return SPARK.tokenize(text.replace("\ufeff", " "))


def _split(token: SqlglotToken, text: str) -> list[Token]:
    """Split sqlglot's multi-word tokens such as `ORDER BY` into words."""
    whole = _token(token, text)
    if whole.kind is not TokenKind.WORD:
        return [whole]
    return [
        Token(TokenKind.WORD, word.group(), whole.start + word.start(), whole.start + word.end())
        for word in re.finditer(r"\S+", whole.text)
    ]


def _token(token: SqlglotToken, text: str) -> Token:
    start, end = token.start, token.end + 1
    raw = text[start:end]
    if token.token_type is TokenType.IDENTIFIER:
        return Token(TokenKind.QUOTED, token.text, start, end)
    if token.token_type in _STRINGS:
        return Token(TokenKind.STRING, token.text, start, end)
    if token.token_type is TokenType.NUMBER:
        return Token(TokenKind.NUMBER, raw, start, end)
    is_word = token.token_type is TokenType.VAR or raw[:1].isalpha() or raw[:1] == "_"
    return Token(TokenKind.WORD if is_word else TokenKind.SYMBOL, raw, start, end)


def _find_unfinished(text: str) -> Unfinished | None:
    """The string, quoted name or comment that is still open at the end of the text, or None."""
    position = 0
    while position < len(text):
        if text.startswith("--", position):
            newline = text.find("\n", position)
            position = len(text) if newline < 0 else newline + 1
        elif text.startswith("/*", position):
            end = _end_of_comment(text, position)
            if end is None:
                return Unfinished("a comment", "*/", position)
            position = end
        elif (quote := text[position]) in "'\"`":
            end = _end_of_quoted(text, position)
            if end is None:
                return Unfinished("a quoted name" if quote == "`" else "a string", quote, position)
            position = end
        else:
            position += 1
    return None


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


def _end_of_quoted(text: str, start: int) -> int | None:
    """The offset after the closing quote, or None if there is none."""
    quote = text[start]
    raw = (
        start > 0
        and text[start - 1] in "rR"
        and not (start > 1 and (text[start - 2].isalnum() or text[start - 2] == "_"))
    )
    position = start + 1
    while position < len(text):
        if text[position] == "\\" and quote != "`" and not raw:
            position += 2
        elif text[position] == quote:
            return position + 1
        else:
            position += 1
    return None
