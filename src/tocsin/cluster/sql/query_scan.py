"""What can be told from a channel query's tokens alone: `NEW dataset`, `:name` markers, calls that are refused.

Not a parser: `channel_query` drives it and then parses `readable`, in which each `NEW X` has become the one name
`NEW_X` padded to the same length, so every place in it is a place in the query as written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.cluster.sql.problems import Position, Problem, one_line
from tocsin.cluster.sql.refused_functions import REFUSED_FUNCTIONS
from tocsin.cluster.sql.tokens import Token, TokenKind, scan
from tocsin.model.schema import is_name

RESERVED_PREFIX = "_TOCSIN"
"""Our own relations and columns in the generated SQL; also what keeps a query from reading them."""

_ENDS_FROM = frozenset({
    "SELECT", "WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "WINDOW", "LIMIT", "OFFSET",
    "QUALIFY", "UNION", "INTERSECT", "EXCEPT", "MINUS", "WITH",
})  # fmt: skip
_BEFORE_TABLE = frozenset({"JOIN", "LATERAL"})
"""Besides a FROM that begins a clause."""
_NOT_A_NAME = _ENDS_FROM | {
    "FROM", "JOIN", "ON", "USING", "AS", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ANTI", "SEMI",
    "LATERAL", "PIVOT", "UNPIVOT", "TABLESAMPLE",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Marker:
    """`:name`, from its colon on."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class NewDataset:
    """`NEW X`, from the N on."""

    dataset: str
    start: int
    end: int


@dataclass(slots=True)
class QueryScan:
    text: str
    readable: str = ""
    tokens: tuple[Token, ...] = ()
    markers: list[Marker] = field(default_factory=list)
    news: dict[int, NewDataset] = field(default_factory=dict)
    """By the place of the N."""
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, offset: int, message: str, code: str, expected: str | None = None) -> None:
        place = Position.of(self.text, offset)
        self.problems.append(Problem("<query>", place.line, place.column, one_line(message), expected, code))


def scan_query(text: str) -> QueryScan:
    found = QueryScan(text)
    scanned = scan(text)
    found.tokens = scanned.tokens
    if scanned.unfinished is not None:
        opening = scanned.unfinished
        found.refuse(opening.start, f"{opening.what} is opened here and never closed", "unfinished", opening.closing)
    _find_markers(found)
    _find_new(found)
    _find_refused(found)
    found.readable = _readable(found)
    return found


def _find_markers(found: QueryScan) -> None:
    for index, token in enumerate(found.tokens):
        name = found.tokens[index + 1] if index + 1 < len(found.tokens) else None
        before = found.tokens[index - 1] if index else None
        # `STRUCT<a:INT>` and `variant:path` have a name right before the colon.
        continues = before is not None and before.is_identifier and before.end == token.start
        named = name is not None and name.kind is TokenKind.WORD and name.start == token.end
        if token.is_symbol(":") and name is not None and named and not continues:
            found.markers.append(Marker(name.text, token.start, name.end))
        if token.is_symbol("?"):
            found.refuse(token.start, "parameters are named: expected :name but found '?'", "marker", ":name")


def _find_new(found: QueryScan) -> None:
    """`NEW` is ours only where a table may stand, so a column may still be called `new`."""
    tokens = found.tokens
    in_from = [False]
    """Per open parenthesis: are we in a FROM clause (or in a parenthesised part of one)?"""
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
            _take_new(found, token, tokens[index + 1] if index + 1 < len(tokens) else None)


def _from_clauses(tokens: tuple[Token, ...]) -> set[int]:
    """Each FROM after which tables stand, and not a value as in `extract(DAY FROM x)` and `IS DISTINCT FROM x`."""
    found = set()
    in_query = [True]
    """Per open parenthesis: has a query begun in it? An argument list has none of its own."""
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
            begins = in_query[-1] or tokens[index - 1].is_symbol("(")  # Spark reads `FROM t SELECT x` too
            if begins and words not in (["IS", "DISTINCT"], ["NOT", "DISTINCT"]):
                found.add(index)
    return found


def _take_new(found: QueryScan, new: Token, name: Token | None) -> None:
    if name is None or not name.is_identifier or name.upper in _NOT_A_NAME:
        place = new.start if name is None else name.start
        what = "the end of the query" if name is None else f"'{name.text}'"
        found.refuse(place, f"expected a dataset after NEW but found {what}", "syntax", "a dataset")
    elif not is_name(name.text):
        found.refuse(name.start, f"'{name.text}' cannot name a dataset", "name", "a dataset")
    else:
        found.news[new.start] = NewDataset(name.text, new.start, name.end)


def _find_refused(found: QueryScan) -> None:
    for index, token in enumerate(found.tokens):
        following = found.tokens[index + 1] if index + 1 < len(found.tokens) else None
        if token.is_identifier and token.text.upper().startswith(RESERVED_PREFIX):
            found.refuse(
                token.start, f"names that start with _tocsin are Tocsin's own: '{token.text}'", "reserved-name"
            )
        elif token.is_identifier and following is not None and following.is_symbol("("):
            reason = REFUSED_FUNCTIONS.get(token.text.upper())
            if reason is not None:
                found.refuse(token.start, f"{token.text} is not allowed in a channel: {reason}", "refused-function")
        elif token.upper == "USING" and following is not None and following.kind is TokenKind.STRING:
            found.refuse(
                token.start, "a script is not allowed in a channel: it runs code outside Spark SQL", "refused-function"
            )


def _readable(found: QueryScan) -> str:
    parts, done = [], 0
    for new in sorted(found.news.values(), key=lambda new: new.start):
        parts += [found.text[done : new.start], f"NEW_{new.dataset}".ljust(new.end - new.start)]
        done = new.end
    return "".join([*parts, found.text[done:]])
