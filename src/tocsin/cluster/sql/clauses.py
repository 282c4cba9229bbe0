"""The clauses that statements share: names, column lists, keys, durations, options. `declarations` drives them.

What can be read on past is noted and read on past, so one bad type does not hide the next.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from tocsin.cluster.sql.problems import any_of, did_you_mean
from tocsin.cluster.sql.statement_cursor import Cursor
from tocsin.cluster.sql.tokens import Token, TokenKind
from tocsin.model.duration import parse_duration_s
from tocsin.model.schema import SCALARS, Column, Schema, canonical_type, is_name

MAX_DURATION_S = 100 * 365 * 86_400.0
"""A century: longer is a slip of the keyboard, and would overflow timestamps further on."""

STATIC_FORMATS = ("csv", "json", "parquet")
_FORMAT_OF_SUFFIX = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
_TYPES = (*sorted(SCALARS), "DECIMAL", "ARRAY")
_PARAMETER_NAME_TAKEN = "SUBSCRIPTION"
"""The column beside the parameters in the table of subscriptions."""


def check_name(cursor: Cursor, token: Token, what: str) -> None:
    if not is_name(token.text):
        message = f"'{token.text}' cannot name a {what}: expected a letter, then letters, digits or '_', at most 128"
        cursor.note(token.start, message, "name", "a name")
    elif token.text.upper() == "NEW" or token.text.upper().startswith("NEW_"):
        message = f"'{token.text}' cannot name a {what}: NEW has a meaning in channel queries"
        cursor.note(token.start, message, "name", "another name")


def columns(cursor: Cursor, what: str, places: dict[str, int] | None = None, *, may_be_empty: bool = False) -> Schema:
    """`name TYPE, …)`: the opening parenthesis has been taken. `places` learns where each name stands."""
    found: list[Column] = []
    seen: set[str] = set()
    if may_be_empty and cursor.accept(")"):
        return Schema(())
    while True:
        name = cursor.take_identifier(f"the name of a {what}")
        _check_column(cursor, name, what, seen)
        found.append(Column(name.text, _type(cursor)))
        seen.add(name.text.upper())
        if places is not None:
            places.setdefault(name.text, name.start)
        if cursor.accept(")"):
            return Schema(tuple(found))
        cursor.expect(",")


def _check_column(cursor: Cursor, name: Token, what: str, seen: set[str]) -> None:
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


def _type(cursor: Cursor) -> str:
    """The canonical type; what is none of ours is noted and read past, with its brackets."""
    first = cursor.take_identifier("a type")
    end, depth = first.end, 0
    while (token := cursor.token) is not None and not token.is_symbol(";"):
        if token.kind is TokenKind.SYMBOL and token.text in ("(", "<"):
            depth += 1
        elif depth == 0:
            break
        elif token.kind is TokenKind.SYMBOL and set(token.text) <= {")", ">"}:
            depth -= len(token.text)  # `ARRAY<ARRAY<INT>>` ends in one token
        end = cursor.advance().end
    written = cursor.text[first.start : end]
    canonical = canonical_type(written)
    if canonical is None:
        hint = did_you_mean(first.text, _TYPES) or f"; expected {any_of(_TYPES)}"
        cursor.note(first.start, f"'{written}' is not a type{hint}", "unknown-type", any_of(_TYPES))
    return canonical or "STRING"


def column_in(cursor: Cursor, schema: Schema, clause: str) -> str:
    """A column of `schema`, in the schema's spelling."""
    token = cursor.take_identifier("a column")
    for name in schema.names:
        if name.upper() == token.text.upper():
            return name
    hint = did_you_mean(token.text, schema.names)
    message = f"{clause} names '{token.text}', which is not a column of this dataset{hint}"
    cursor.note(token.start, message, "unknown-column", any_of(schema.names))
    return token.text


def key_columns(cursor: Cursor, schema: Schema) -> tuple[str, ...]:
    cursor.expect("(")
    key: list[str] = []
    while True:
        start = cursor.offset
        column = column_in(cursor, schema, "KEY")
        if column in key:
            cursor.note(start, f"KEY names '{column}' twice", "duplicate-column")
        elif (schema.type_of(column) or "").startswith("ARRAY"):
            cursor.note(start, f"KEY names '{column}', an array: expected a column of a plain type", "key-type")
        key.append(column)
        if cursor.accept(")"):
            return tuple(key)
        cursor.expect(",")


def order_column(cursor: Cursor, schema: Schema) -> str:
    """What tells which of two records with the same key is the later one."""
    start = cursor.offset
    column = column_in(cursor, schema, "ORDER BY")
    if (schema.type_of(column) or "").startswith("ARRAY"):
        # Spark would put arrays in order; what merges small files and looks up the latest in memory cannot.
        reason = "an array, which has no earlier and later: expected a column of a plain type"
        cursor.note(start, f"ORDER BY names '{column}', {reason}", "order-type")
    return column


def duration_s(cursor: Cursor, clause: str, least_s: float = 1.0) -> float:
    """`10 SECONDS`, `PT0.5S`, `'P1D'`; what is out of bounds is noted and read past."""
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


def _end_of_run(cursor: Cursor, end: int) -> int:
    """`PT0.5S` comes as several tokens with nothing between them."""
    while (
        cursor.token is not None
        and cursor.token.start == end
        and (cursor.token.kind is not TokenKind.SYMBOL or cursor.token.text == ".")
    ):
        end = cursor.advance().end
    return end


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def options(cursor: Cursor) -> dict[str, str]:
    """`(key 'value', a.b = 'value')`."""
    cursor.expect("(")
    found: dict[str, str] = {}
    if cursor.accept(")"):
        return found
    while True:
        start = cursor.offset
        key = _option_key(cursor)
        if key.lower() in {other.lower() for other in found}:
            cursor.note(start, f"option '{key}' is given twice", "duplicate-option")
        cursor.accept("=")
        token = cursor.token
        if token is None or (
            token.kind not in (TokenKind.STRING, TokenKind.NUMBER) and token.upper not in ("TRUE", "FALSE")
        ):
            cursor.fail("a value in quotes")
        found[key] = cursor.advance().text
        if cursor.accept(")"):
            return found
        cursor.expect(",")


def _option_key(cursor: Cursor) -> str:
    if cursor.token is not None and cursor.token.kind is TokenKind.STRING:
        return cursor.advance().text
    parts = [cursor.take_identifier("an option").text]
    while cursor.accept("."):
        parts.append(cursor.take_identifier("an option").text)
    return ".".join(parts)


def static_format(cursor: Cursor, source: Token) -> str | None:
    if cursor.accept("FORMAT"):
        token = cursor.take_identifier(any_of(STATIC_FORMATS))
        if token.text.lower() not in STATIC_FORMATS:
            hint = did_you_mean(token.text, STATIC_FORMATS)
            message = f"expected {any_of(STATIC_FORMATS)} but found '{token.text}'{hint}"
            cursor.note(token.start, message, "unknown-format", any_of(STATIC_FORMATS))
        return token.text.lower()
    format_ = _FORMAT_OF_SUFFIX.get(PurePosixPath(source.text).suffix.lower())
    if format_ is None:
        message = f"the name '{source.text}' does not tell its format: expected FORMAT csv, json or parquet"
        cursor.note(source.start, message, "unknown-format", "FORMAT csv, json or parquet")
    return format_
