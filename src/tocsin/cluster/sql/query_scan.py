"""Scans the tokens of a channel query for Tocsin's own syntax: `NEW dataset`, `:name` markers, forbidden calls.

Not a parser. `channel_query` calls it and then parses `readable`. There each `NEW X` has become the name `NEW_X`,
padded to the same length, so that every offset in it is also an offset in the query as written.

A channel reads declared datasets and computes on them. `allowed_functions` lists the functions that it may call. Here,
functions with a reason to refuse them are found by their names; `channel_query` finds unknown functions in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.cluster.sql.allowed_functions import reason_to_refuse, refusal_of
from tocsin.cluster.sql.problems import Position, Problem
from tocsin.cluster.sql.tokens import Token, TokenKind, scan
from tocsin.model.schema import is_name

RESERVED_PREFIX = "_TOCSIN"
"""Relations and columns of the generated SQL start with it. A channel query may not use such names."""

_ENDS_FROM = frozenset({
    "SELECT", "WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "WINDOW", "LIMIT", "OFFSET",
    "QUALIFY", "UNION", "INTERSECT", "EXCEPT", "MINUS", "WITH",
})  # fmt: skip
_BEFORE_TABLE = frozenset({"JOIN", "LATERAL"})
"""A table follows these words, and a FROM that begins a clause."""
_NOT_A_NAME = _ENDS_FROM | {
    "FROM", "JOIN", "ON", "USING", "AS", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ANTI", "SEMI",
    "LATERAL", "PIVOT", "UNPIVOT", "TABLESAMPLE",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Marker:
    """A parameter in the query: `:name`, colon included."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NewDataset:
    """`NEW X`, keyword included."""

    dataset: str
    start: int
    end: int


@dataclass(slots=True)
class QueryScan:
    text: str
    """The query with blanks in place of comments. Neither sqlglot nor Spark ever reads a comment."""
    readable: str = ""
    tokens: tuple[Token, ...] = ()
    markers: list[Marker] = field(default_factory=list)
    news: dict[int, NewDataset] = field(default_factory=dict)
    """Each `NEW X`, by the offset of the word NEW."""
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, offset: int, message: str, code: str, expected: str | None = None) -> None:
        self.problems.append(Problem.at("<query>", Position.of(self.text, offset), message, code, expected))


def scan_query(text: str) -> QueryScan:
    scanned = scan(text)
    query = QueryScan(scanned.text)
    query.tokens = scanned.tokens
    for place in scanned.unclear:
        query.refuse(place.start, place.message, "unclear")
    if scanned.unfinished is not None:
        opening = scanned.unfinished
        query.refuse(opening.start, opening.message, "unfinished", opening.closing)
    _find_markers(query)
    _find_new(query)
    _find_refused(query)
    query.readable = _readable(query)
    return query


def _find_markers(query: QueryScan) -> None:
    for index, token in enumerate(query.tokens):
        name = query.tokens[index + 1] if index + 1 < len(query.tokens) else None
        before = query.tokens[index - 1] if index else None
        # `STRUCT<a:INT>` and `variant:path` have a name directly before the colon.
        follows_name = before is not None and before.is_identifier and before.end == token.start
        named = name is not None and name.kind is TokenKind.WORD and name.start == token.end
        if token.is_symbol(":") and name is not None and named and not follows_name:
            query.markers.append(Marker(name.text, token.start, name.end))
        if token.is_symbol("?"):
            query.refuse(token.start, "parameters are named: expected :name but found '?'", "marker", ":name")


def _find_new(query: QueryScan) -> None:
    """`NEW` is a keyword only where a table may be, so that a column may be called `new`."""
    tokens = query.tokens
    in_from = [False]
    """For each open parenthesis: True if it lies in a FROM clause (or in a parenthesised part of one)."""
    from_clauses = _from_clauses(tokens)
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        follows = before is not None and (before.upper in _BEFORE_TABLE or before.text in {",", "("})
        at_table = in_from[-1] and (follows or index - 1 in from_clauses)
        if token.is_symbol("("):
            in_from.append(at_table)
        elif token.is_symbol(")"):
            if len(in_from) > 1:
                in_from.pop()
        elif index in from_clauses:
            in_from[-1] = True
        elif token.upper in _ENDS_FROM:
            in_from[-1] = False
        elif token.upper == "NEW" and at_table:
            _add_new(query, token, tokens[index + 1] if index + 1 < len(tokens) else None)


def _from_clauses(tokens: tuple[Token, ...]) -> set[int]:
    """The indexes of each FROM that a table follows, not a value as in `extract(DAY FROM x)`, `IS DISTINCT FROM x`."""
    clauses = set()
    in_query = [True]
    """For each open parenthesis: True if a query has begun inside. In an argument list, no query begins."""
    for index, token in enumerate(tokens):
        if token.is_symbol("("):
            in_query.append(False)
        elif token.is_symbol(")"):
            if len(in_query) > 1:
                in_query.pop()
        elif token.upper in ("SELECT", "WITH"):
            in_query[-1] = True
        elif token.upper == "FROM":
            words = [before.upper for before in tokens[max(0, index - 2) : index]]
            begins = in_query[-1] or tokens[index - 1].is_symbol("(")  # Spark also accepts `FROM t SELECT x`
            if begins and words not in (["IS", "DISTINCT"], ["NOT", "DISTINCT"]):
                clauses.add(index)
    return clauses


def _add_new(query: QueryScan, new: Token, name: Token | None) -> None:
    if name is None or not name.is_identifier or name.upper in _NOT_A_NAME:
        offset = new.start if name is None else name.start
        actual = "the end of the query" if name is None else f"'{name.text}'"
        query.refuse(offset, f"expected a dataset after NEW but found {actual}", "syntax", "a dataset")
    elif not is_name(name.text):
        query.refuse(name.start, f"'{name.text}' cannot name a dataset", "name", "a dataset")
    else:
        query.news[new.start] = NewDataset(name.text, new.start, name.end)


def _find_refused(query: QueryScan) -> None:
    """Report reserved names, functions with a reason to refuse them, and scripts (`USING '…'`)."""
    for index, token in enumerate(query.tokens):
        following = query.tokens[index + 1] if index + 1 < len(query.tokens) else None
        if token.is_identifier and token.text.upper().startswith(RESERVED_PREFIX):
            query.refuse(
                token.start, f"names that start with _tocsin are Tocsin's own: '{token.text}'", "reserved-name"
            )
        elif token.is_identifier and following is not None and following.is_symbol("("):
            if reason_to_refuse(token.text) is not None:
                query.refuse(token.start, refusal_of(token.text) or "", "refused-function")
        elif token.upper == "USING" and following is not None and following.kind is TokenKind.STRING:
            query.refuse(
                token.start, "a script is not allowed in a channel: it runs code outside Spark SQL", "refused-function"
            )


def _readable(query: QueryScan) -> str:
    """The text with each `NEW X` replaced by `NEW_X`, padded to the same length, so that sqlglot can parse it."""
    parts, done = [], 0
    for new in sorted(query.news.values(), key=lambda new: new.start):
        parts += [query.text[done : new.start], f"NEW_{new.dataset}".ljust(new.end - new.start)]
        done = new.end
    return "".join([*parts, query.text[done:]])
