"""Reads the clauses of a statement: names, column lists, keys, durations, options.

`TokenCursor` walks over the tokens of an application file. It remembers every word that the parser tried to accept at
the current token, so that a problem can list all of them: `expected KEY, RETAIN or ';' but found 'KEYS'`. The functions
below it read one clause each. If a clause is wrong but its end is known, they report a problem and continue, so that
one wrong type does not hide the next problem. Not the grammar of statements: `declarations` has it and calls this.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NoReturn

from tocsin.cluster.sql.problems import Position, Problem, any_of, did_you_mean, shortened
from tocsin.cluster.sql.tokens import Token, TokenKind, scan
from tocsin.model.duration import parse_duration_s
from tocsin.model.schema import SCALARS, Column, Schema, canonical_type, is_name

MAX_DURATION_S = 100 * 365 * 86_400.0
"""A century. A longer duration is a typing error and would overflow timestamps."""

STATIC_FORMATS = ("csv", "json", "parquet")
_FORMAT_OF_SUFFIX = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_TYPES = (*sorted(SCALARS), "DECIMAL", "ARRAY")
_PARAMETER_NAME_TAKEN = "SUBSCRIPTION"
"""The table of subscriptions has a column of this name besides the parameters."""
_STARTS = {
    "CREATE": {"OR", "STREAM", "KEYED", "STATIC", "REPETITIVE", "CONTINUOUS", "FEED", "TOPIC"},
    "DROP": {"DATASET", "CHANNEL", "FEED", "TOPIC"},
}
"""The first two words of each statement. Such a pair inside another statement means that a `;` is missing."""


class StatementRefused(Exception):
    """The parser cannot continue with this statement. The problem is in `TokenCursor.problems` already."""


class TokenCursor:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.problems: list[Problem] = []
        scanned = scan(text)
        self._tokens = scanned.tokens
        self._unfinished = scanned.unfinished
        self._index = 0
        self._tried: list[str] = []
        """The words that the parser tried at the current token without success."""
        if self._unfinished is not None:
            opening = self._unfinished
            self.note(opening.start, opening.message, "unfinished", opening.closing)

    @property
    def token(self) -> Token | None:
        return self._tokens[self._index] if self._index < len(self._tokens) else None

    @property
    def offset(self) -> int:
        """The offset where the current token starts; after the last token, the offset where that token ends."""
        if self.token is not None:
            return self.token.start
        return self._tokens[-1].end if self._tokens else 0

    @property
    def position(self) -> Position:
        return Position.of(self.text, self.offset)

    def peek(self, ahead: int = 1) -> Token | None:
        index = self._index + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def advance(self) -> Token:
        token = self._tokens[self._index]
        self._index += 1
        self._tried.clear()
        return token

    def accept(self, *words: str) -> bool:
        """Consume these keywords or symbols if all of them come next; else consume nothing and return False.

        If only the first words match, the statement is refused at the word that differs.
        """
        for ahead, word in enumerate(words):
            token = self.peek(ahead)
            if token is None or not (token.upper == word or token.is_symbol(word)):
                if ahead:  # `IF NOT` without EXISTS: the problem is at the third word, not at IF
                    for _ in range(ahead):
                        self.advance()
                    self.fail(_shown(word))
                self._tried.append(_shown(word))
                return False
        for _ in words:
            self.advance()
        return True

    def choose(self, words: Iterable[str]) -> str:
        """Consume and return the keyword among `words` that comes next. Refuse the statement if none does."""
        chosen = next((word for word in words if self.accept(word)), None)
        if chosen is None:
            self.fail()
        return chosen

    def expect(self, *words: str) -> None:
        if not self.accept(*words):
            self.fail()

    def take(self, kind: TokenKind, what: str) -> Token:
        token = self.token
        if token is None or token.kind is not kind:
            self.fail(what)
        return self.advance()

    def take_identifier(self, what: str) -> Token:
        token = self.token
        if token is None or not token.is_identifier:
            self.fail(what)
        return self.advance()

    def advance_to(self, offset: int) -> None:
        """Consume every token that starts before this offset."""
        while self.token is not None and self.token.start < offset:
            self.advance()

    def at_end(self) -> bool:
        return self.token is None

    def at_statement_end(self) -> bool:
        return self.token is None or self.token.is_symbol(";") or self.at_missing_semicolon()

    def at_missing_semicolon(self) -> bool:
        following = self.peek()
        return self.token is not None and following is not None and following.upper in _STARTS.get(self.token.upper, ())

    def resynchronise(self) -> None:
        """Skip to the next statement: after the next `;`, or to a CREATE or DROP without a `;` before it."""
        while not self.at_statement_end():
            self.advance()
        self.skip_semicolons()

    def skip_semicolons(self) -> None:
        while self.token is not None and self.token.is_symbol(";"):
            self.advance()
        self._tried.clear()

    def fail(self, *expected: str) -> NoReturn:
        """Refuse the statement at the current token. The problem lists every word that the parser tried here."""
        self._tried += expected
        token = self.token
        choices = any_of(self._tried)
        if token is None and self._unfinished is not None:
            raise StatementRefused  # the text from here on is unreadable, and the constructor has reported that
        actual = "the end of the file" if token is None else f"'{shortened(self.text[token.start : token.end])}'"
        hint = did_you_mean(token.text, self._tried) if token is not None and token.is_identifier else ""
        self.note(self.offset, f"expected {choices} but found {actual}{hint}", "syntax", choices)
        raise StatementRefused

    def note(self, offset: int, message: str, code: str, expected: str | None = None) -> None:
        """Report a problem. The parser continues."""
        self.problems.append(Problem.at(self.file, Position.of(self.text, offset), message, code, expected))


def _shown(word: str) -> str:
    return word if word[0].isalpha() else f"'{word}'"


def check_name(cursor: TokenCursor, token: Token, what: str) -> None:
    if not is_name(token.text):
        message = f"'{token.text}' cannot name a {what}: expected a letter, then letters, digits or '_', at most 128"
        cursor.note(token.start, message, "name", "a name")
    elif token.text.upper() == "NEW" or token.text.upper().startswith("NEW_"):
        message = f"'{token.text}' cannot name a {what}: NEW has a meaning in channel queries"
        cursor.note(token.start, message, "name", "another name")


def columns(
    cursor: TokenCursor,
    what: str,
    offsets: dict[str, int] | None = None,
    *,
    may_be_empty: bool = False,
    bound: list[str] | None = None,
) -> Schema:
    """Read `name TYPE, …)` after the opening parenthesis. The offset of each name goes into `offsets`.

    The names of parameters with DEFAULT CURRENT_USER ONLY go into `bound`; None does not accept that clause.
    """
    listed: list[Column] = []
    seen: set[str] = set()
    if may_be_empty and cursor.accept(")"):
        return Schema(())
    while True:
        name = cursor.take_identifier(f"the name of a {what}")
        _check_column(cursor, name, what, seen)
        listed.append(Column(name.text, _type(cursor)))
        if bound is not None and _is_bound(cursor, listed[-1]):
            bound.append(name.text)
        seen.add(name.text.upper())
        if offsets is not None:
            offsets.setdefault(name.text, name.start)
        if cursor.accept(")"):
            return Schema(tuple(listed))
        cursor.expect(",")


def _is_bound(cursor: TokenCursor, parameter: Column) -> bool:
    """Read DEFAULT CURRENT_USER ONLY, which binds a STRING parameter to the session's user."""
    start = cursor.offset
    if not cursor.accept("DEFAULT"):
        return False
    cursor.expect("CURRENT_USER")
    cursor.expect("ONLY")
    if parameter.type != "STRING":
        message = f"'{parameter.name}' is {parameter.type}: expected STRING, because CURRENT_USER is the name of a user"
        cursor.note(start, message, "bound-type", "a STRING parameter")
    return True


def _check_column(cursor: TokenCursor, name: Token, what: str, seen: set[str]) -> None:
    if not is_name(name.text):
        cursor.note(
            name.start, f"'{name.text}' cannot name a {what}: expected a letter, then letters, digits or '_'", "name"
        )
    elif name.text.upper() in seen:
        cursor.note(name.start, f"{what} '{name.text}' is declared twice", "duplicate-column")
    elif what == "parameter" and name.text.upper() == _PARAMETER_NAME_TAKEN:
        cursor.note(
            name.start, f"a parameter cannot be called '{name.text}': results carry a column of that name", "name"
        )


def _type(cursor: TokenCursor) -> str:
    """The canonical type. An unknown type becomes a problem; the cursor skips it, brackets included."""
    first = cursor.take_identifier("a type")
    end, depth = first.end, 0
    while (token := cursor.token) is not None and not token.is_symbol(";"):
        if token.kind is TokenKind.SYMBOL and token.text in ("(", "<"):
            depth += 1
        elif depth == 0:
            break
        elif token.kind is TokenKind.SYMBOL and set(token.text) <= {")", ">"}:
            depth -= len(token.text)  # the `>>` of `ARRAY<ARRAY<INT>>` is one token
        end = cursor.advance().end
    written = cursor.text[first.start : end]
    canonical = canonical_type(written)
    if canonical is None:
        hint = did_you_mean(first.text, _TYPES) or f"; expected {any_of(_TYPES)}"
        cursor.note(first.start, f"'{written}' is not a type{hint}", "unknown-type", any_of(_TYPES))
    return canonical or "STRING"


def _column_of(cursor: TokenCursor, schema: Schema, clause: str) -> str:
    """A column of `schema`, in the schema's spelling."""
    token = cursor.take_identifier("a column")
    for name in schema.names:
        if name.upper() == token.text.upper():
            return name
    hint = did_you_mean(token.text, schema.names)
    message = f"{clause} names '{token.text}', which is not a column of this dataset{hint}"
    cursor.note(token.start, message, "unknown-column", any_of(schema.names))
    return token.text


def key_columns(cursor: TokenCursor, schema: Schema) -> tuple[str, ...]:
    cursor.expect("(")
    key: list[str] = []
    while True:
        start = cursor.offset
        column = _column_of(cursor, schema, "KEY")
        if column in key:
            cursor.note(start, f"KEY names '{column}' twice", "duplicate-column")
        elif (schema.type_of(column) or "").startswith("ARRAY"):
            cursor.note(start, f"KEY names '{column}', an array: expected a column of a plain type", "key-type")
        key.append(column)
        if cursor.accept(")"):
            return tuple(key)
        cursor.expect(",")


def order_column(cursor: TokenCursor, schema: Schema) -> str:
    """The column that decides which of two records with the same key is the later one."""
    start = cursor.offset
    column = _column_of(cursor, schema, "ORDER BY")
    if (schema.type_of(column) or "").startswith("ARRAY"):
        # Spark can order arrays. The compaction of small files and the in-memory lookup of latest records cannot.
        reason = "an array, which has no earlier and later: expected a column of a plain type"
        cursor.note(start, f"ORDER BY names '{column}', {reason}", "order-type")
    return column


def owner_column(cursor: TokenCursor, schema: Schema, key: tuple[str, ...]) -> str:
    """The column of OWNED BY: a STRING that is the whole KEY, so that each user owns one record."""
    start = cursor.offset
    column = _column_of(cursor, schema, "OWNED BY")
    column_type = schema.type_of(column)
    if column_type is None:
        return column  # `_column_of` has reported it
    if column_type != "STRING":
        message = f"OWNED BY names '{column}', a {column_type}: expected a STRING column with the name of a user"
        cursor.note(start, message, "owner-type", "a STRING column")
    elif key != (column,):
        message = f"OWNED BY names '{column}', but KEY is ({', '.join(key)}): expected KEY ({column})"
        cursor.note(start, message, "owner-key", f"KEY ({column})")
    return column


def refuse_owner(cursor: TokenCursor, kind: str) -> None:
    """Refuse an OWNED BY clause of a dataset that is not KEYED."""
    if cursor.token is not None and cursor.token.upper == "OWNED":
        message = f"OWNED BY is for KEYED datasets, and this dataset is {kind}: expected ';'"
        cursor.note(cursor.offset, message, "owner-kind", "';'")
        raise StatementRefused


def duration_s(cursor: TokenCursor, clause: str, least_s: float = 1.0) -> float:
    """Read `10 SECONDS`, `PT0.5S` or `'P1D'`, in seconds. A duration out of bounds becomes a problem."""
    first = cursor.token
    if first is None or first.is_symbol(";") or first.upper == "AS":
        cursor.fail("a duration such as 10 SECONDS or PT10S")
    cursor.advance()
    written = first.text
    if first.kind is not TokenKind.STRING:
        written = cursor.text[first.start : _end_of_run(cursor, first.end)]
        if cursor.token is not None and cursor.token.kind is TokenKind.WORD and _is_number(written):
            written += f" {cursor.advance().text}"
    seconds = parse_duration_s(written)
    if seconds is None:
        message = f"'{written}' is not a duration: expected one such as 10 SECONDS, 7 DAYS, PT10S or P1D"
        cursor.note(first.start, message, "duration", "a duration such as 10 SECONDS or PT10S")
        return least_s
    if not least_s <= seconds <= MAX_DURATION_S:
        bounds = "at least 1 second" if seconds < least_s else "at most 100 years"
        cursor.note(first.start, f"{clause} must be {bounds}, but found {written}", "duration", bounds)
    return seconds


def _end_of_run(cursor: TokenCursor, end: int) -> int:
    """The end of adjacent tokens: `PT0.5S` is several tokens without blanks between them."""
    while (
        cursor.token is not None
        and cursor.token.start == end
        and (cursor.token.kind is not TokenKind.SYMBOL or cursor.token.text == ".")
    ):
        end = cursor.advance().end
    return end


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def options(cursor: TokenCursor) -> dict[str, str]:
    """Read `(key 'value', a.b = 'value')`."""
    cursor.expect("(")
    values: dict[str, str] = {}
    if cursor.accept(")"):
        return values
    while True:
        start = cursor.offset
        key = _option_key(cursor)
        if key.lower() in {other.lower() for other in values}:
            cursor.note(start, f"option '{key}' is given twice", "duplicate-option")
        cursor.accept("=")
        token = cursor.token
        if token is None or (
            token.kind not in (TokenKind.STRING, TokenKind.NUMBER) and token.upper not in ("TRUE", "FALSE")
        ):
            cursor.fail("a value in quotes")
        values[key] = cursor.advance().text
        if cursor.accept(")"):
            return values
        cursor.expect(",")


def _option_key(cursor: TokenCursor) -> str:
    if cursor.token is not None and cursor.token.kind is TokenKind.STRING:
        return cursor.advance().text
    parts = [cursor.take_identifier("an option").text]
    while cursor.accept("."):
        parts.append(cursor.take_identifier("an option").text)
    return ".".join(parts)


def static_format(cursor: TokenCursor, source: Token) -> str | None:
    """The FORMAT clause, or the format that the suffix of the file name implies; None, with a problem, if neither."""
    if cursor.accept("FORMAT"):
        token = cursor.take_identifier(any_of(STATIC_FORMATS))
        if token.text.lower() not in STATIC_FORMATS:
            hint = did_you_mean(token.text, STATIC_FORMATS)
            message = f"expected {any_of(STATIC_FORMATS)} but found '{token.text}'{hint}"
            cursor.note(token.start, message, "unknown-format", any_of(STATIC_FORMATS))
        return token.text.lower()
    format_ = _FORMAT_OF_SUFFIX.get(PurePosixPath(source.text).suffix.lower())
    if format_ is None:
        message = f"the name '{source.text}' does not show its format: expected FORMAT csv, json or parquet"
        cursor.note(source.start, message, "unknown-format", "FORMAT csv, json or parquet")
    return format_
