"""The statements of an edge application, for the control of a tree.

    CREATE EDGE STREAM Readings (meter STRING, ts TIMESTAMP, kwh DOUBLE) TIME ts;
    CREATE EDGE QUERY Use LATENESS 10 SECONDS INTO UseByHour AS SELECT …;
    DROP EDGE QUERY Use;

A text is split into statements; `query.py` compiles queries later, because a query needs the streams before it.
"""

from __future__ import annotations

import re

import sqlglot
from sqlglot import TokenType

from tocsin.edge.plan import Stream, is_supported
from tocsin.edge.query import QueryCode, QueryRejected
from tocsin.edge.tree_events import QueryDeployed, QueryDropped, StreamDeclared
from tocsin.model.schema import Column, Schema, canonical_type, is_name

Statement = StreamDeclared | QueryDeployed | QueryDropped

_STREAM = re.compile(
    r"\s*CREATE\s+EDGE\s+STREAM\s+(?P<name>\S+?)\s*\((?P<columns>[^)]*)\)\s*TIME\s+(?P<time>\S+)\s*", re.IGNORECASE
)
_QUERY = re.compile(r"\s*CREATE\s+EDGE\s+QUERY\b", re.IGNORECASE)
_DROP = re.compile(r"\s*DROP\s+EDGE\s+QUERY\s+(?P<name>\S+)\s*", re.IGNORECASE)


def parse_statements(text: str) -> list[Statement] | QueryRejected:
    """The statements in order, or the first one that is wrong."""
    try:
        tokens = sqlglot.tokenize(text, read="spark")
    except sqlglot.errors.SqlglotError as error:
        return QueryRejected(QueryCode.SYNTAX, str(error).splitlines()[0])
    statements: list[Statement] = []
    start, last = None, 0
    for token in (*tokens, None):
        if token is not None and token.token_type is not TokenType.SEMICOLON:
            start = token.start if start is None else start
            last = token.end + 1
        elif start is not None:
            statement = _statement(text[start:last])
            if isinstance(statement, QueryRejected):
                return statement
            statements.append(statement)
            start = None
    return statements


def _statement(text: str) -> Statement | QueryRejected:
    if _QUERY.match(text):
        return QueryDeployed(text)
    if match := _DROP.fullmatch(text):
        return QueryDropped(match["name"])
    if match := _STREAM.fullmatch(text):
        return _stream(match["name"], match["columns"], match["time"])
    reason = f"expected CREATE EDGE STREAM, CREATE EDGE QUERY or DROP EDGE QUERY, not {text.split(maxsplit=1)[0]} …"
    return QueryRejected(QueryCode.SYNTAX, reason)


def _stream(name: str, columns: str, time: str) -> StreamDeclared | QueryRejected:
    declared: list[Column] = []
    for item in columns.split(","):
        words = item.split()
        if len(words) != 2 or not is_name(words[0]):
            return QueryRejected(QueryCode.SYNTAX, f"{item.strip()!r} is not a column: expected name TYPE")
        type_ = canonical_type(words[1])
        if type_ is None or not is_supported(type_):
            return QueryRejected(QueryCode.WRONG_TYPE, f"{words[1]} columns are not supported at the edge")
        declared.append(Column(words[0], type_))
    schema = Schema(tuple(declared))
    if not is_name(name) or len({column.lower() for column in schema.names}) < len(declared):
        return QueryRejected(QueryCode.SYNTAX, f"{name!r} is not a name, or two columns have one name")
    column = next((column for column in schema.names if column.lower() == time.lower()), None)
    if column is None or schema.type_of(column) != "TIMESTAMP":
        return QueryRejected(QueryCode.WRONG_TYPE, f"TIME {time} is not a TIMESTAMP column of {name}")
    return StreamDeclared(name, Stream(schema, column))
