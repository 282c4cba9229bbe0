"""Splits an SQL text into Spark's tokens, with the offset of each token in the text.

Not a parser. `scan` never raises: for a text that ends inside a string or a comment it returns the tokens before that
string or comment, and the offset where it opens. sqlglot cannot do this alone. It reports the line and column of a
token's *end*, and it rejects an unfinished text as a whole, without an offset. So `lexing` looks for unfinished strings
and comments first. It also removes all comments. The parsers of application files and of channel queries call `scan`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from sqlglot import Token as SqlglotToken
from sqlglot import TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from tocsin.cluster.sql.lexing import Lexed, Unclear, Unfinished, disagreement, lex

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
class Scan:
    text: str
    """The text with blanks in place of comments. Offsets are the same as in the text as written."""
    tokens: tuple[Token, ...]
    unfinished: Unfinished | None
    unclear: tuple[Unclear, ...]
    """Places that Spark would read in another way than these tokens. Only a text that Spark reads may not have them."""


def scan(text: str) -> Scan:
    lexed = lex(text)
    unfinished = lexed.unfinished
    readable = lexed.text if unfinished is None else lexed.text[: unfinished.start]
    try:
        tokens = spark_tokens(readable)
    except SqlglotError:
        # sqlglot rejects a literal that `lex` accepts: the offsets after it are unknown.
        return Scan(lexed.text, (), unfinished or Unfinished("a string or a name of this text", "", 0), lexed.unclear)
    # sqlglot splits `1L` into three tokens with the same offset (`1 :: BIGINT`): keep the first.
    by_start = {token.start: token for token in reversed(tokens)}
    split = tuple(part for start in sorted(by_start) for part in _split(by_start[start], readable))
    return Scan(lexed.text, split, unfinished, _unclear(lexed, split))


def _unclear(lexed: Lexed, tokens: tuple[Token, ...]) -> tuple[Unclear, ...]:
    if lexed.unclear or lexed.unfinished is not None:
        return lexed.unclear
    kinds = (TokenKind.WORD, TokenKind.QUOTED, TokenKind.STRING)
    start = disagreement(lexed.lexemes, ((token.start, token.end) for token in tokens if token.kind in kinds))
    return () if start is None else (Unclear(start, "Spark reads this text in another way than it seems: rewrite it"),)


def spark_tokens(text: str) -> list[SqlglotToken]:
    """sqlglot's own tokens, for sqlglot's parser."""
    return SPARK.tokenize(text)


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
