"""`CREATE EDGE QUERY … AS SELECT …`: from text to a plan of operators.

    CREATE EDGE QUERY HighUse LATENESS 10 SECONDS AS
    SELECT meter, window.start AS since, SUM(kwh) AS total FROM Readings WHERE kwh > 0
    GROUP BY meter, WINDOW(ts, '1 hour', '15 minutes') HAVING SUM(kwh) > 5 ORDER BY since, meter

The SELECT is Spark SQL as it stands: run on the readings themselves it gives the same rows. What an endless stream or a
small node cannot do is refused with a code and changes nothing. `LATENESS` says how far out of order readings may be.

A query is compiled once into an `EdgeQuery` that does not know the tree, and laid out (`layout.py`) for the nodes at
which its streams enter. This module reads the clauses; scalar expressions are read by `sql_expressions.py`,
aggregates and windows by `sql_grouping.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import sqlglot
from sqlglot import TokenType, exp

from tocsin.edge.expressions import Call, ColumnRef, Expression, columns_of
from tocsin.edge.operators.aggregate import END, START, WindowAggregateSpec
from tocsin.edge.operators.ordered import IntervalJoinSpec, SortSpec
from tocsin.edge.plan import Stream, is_carried
from tocsin.edge.sql_expressions import Scope, Unsupported, conjuncts, convert, interval_us
from tocsin.edge.sql_grouping import Grouped, window_of
from tocsin.model.duration import parse_duration_s
from tocsin.model.schema import is_name

_HEADER = re.compile(
    r"\s*CREATE\s+EDGE\s+QUERY\s+(?P<name>\S+)(?:\s+LATENESS\s+(?P<lateness>.+?))?\s+AS\s+(?P<select>SELECT\b.*?);?\s*",
    re.IGNORECASE | re.DOTALL,
)


class QueryCode(StrEnum):
    SYNTAX = "SYNTAX"
    UNKNOWN_STREAM = "UNKNOWN_STREAM"
    UNKNOWN_COLUMN = "UNKNOWN_COLUMN"
    UNSUPPORTED = "UNSUPPORTED"
    """Valid SQL that an edge node does not run."""
    UNBOUNDED = "UNBOUNDED"
    """An endless stream would never give an answer, or never forget: no window, no bound on a join's time."""
    WRONG_TYPE = "WRONG_TYPE"


@dataclass(frozen=True, slots=True)
class QueryRejected:
    code: QueryCode
    reason: str


@dataclass(frozen=True, slots=True)
class Side:
    """One stream of FROM: its rows are filtered and renamed where they enter."""

    stream: str
    predicate: Expression | None
    columns: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class EdgeQuery:
    name: str
    select: str
    """As written: what Spark would run."""
    lateness_us: int
    sides: tuple[Side, ...]
    join: IntervalJoinSpec | None
    residual: Expression | None
    """What of WHERE needs both sides of a join."""
    aggregate: WindowAggregateSpec | None
    having: Expression | None
    output: tuple[tuple[str, Expression], ...]
    sort: SortSpec | None
    streams: Mapping[str, Stream]


def parse_edge_query(text: str, streams: Mapping[str, Stream]) -> EdgeQuery | QueryRejected:
    """`streams` by name; names are not case-sensitive, as in Spark."""
    header = _HEADER.fullmatch(text)
    if header is None or not is_name(header["name"]):
        return QueryRejected(QueryCode.SYNTAX, "expected CREATE EDGE QUERY name [LATENESS duration] AS SELECT …")
    lateness_s = 0.0 if header["lateness"] is None else parse_duration_s(header["lateness"].strip("'\" "))
    if lateness_s is None:
        return QueryRejected(QueryCode.SYNTAX, f"{header['lateness']!r} is not a duration")
    try:
        select = sqlglot.parse_one(_with_window_function(header["select"]), read="spark")
    except sqlglot.errors.SqlglotError as error:
        return QueryRejected(QueryCode.SYNTAX, str(error).splitlines()[0])
    try:
        return _Compiler(streams).compile(header["name"], header["select"], round(lateness_s * 1e6), select)
    except Unsupported as error:
        return QueryRejected(QueryCode(error.code), error.reason)


def _with_window_function(select: str) -> str:
    """sqlglot takes `GROUP BY WINDOW(` for the WINDOW clause: give the function a name of its own, by tokens, so that
    nothing inside a string is touched."""
    tokens = sqlglot.tokenize(select, read="spark")
    for token, following in reversed(list(pairwise(tokens))):
        if token.token_type is TokenType.WINDOW and following.token_type is TokenType.L_PAREN:
            select = f"{select[: token.start]}{_WINDOW}{select[token.end + 1 :]}"
    return select


_WINDOW = "tocsin_window"
_CLAUSES = {"kind", "expressions", "from_", "joins", "where", "group", "having", "order", "hint", "operation_modifiers"}


class _Compiler:
    """One query. Raises Unsupported inside; `parse_edge_query` turns that into a rejection."""

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self._streams = {name.lower(): (name, stream) for name, stream in streams.items()}

    def compile(self, name: str, text: str, lateness_us: int, select: exp.Expr) -> EdgeQuery:
        if not isinstance(select, exp.Select):
            raise Unsupported("UNSUPPORTED", "only a single SELECT")
        extra = [key for key, value in select.args.items() if value and key not in _CLAUSES]
        if extra:
            raise Unsupported("UNSUPPORTED", f"{extra[0].upper().rstrip('_')} is not supported at the edge")
        joins = select.args.get("joins") or []
        tables = [select.args["from_"].this, *(join.this for join in joins)] if select.args.get("from_") else []
        if not 1 <= len(tables) <= 2:
            raise Unsupported("UNSUPPORTED", "FROM takes one stream, or two joined")
        scope = Scope([self._table(table) for table in tables])
        join, rest = self._join(joins[0], scope) if joins else (None, [])
        filters: list[list[Expression]] = [[] for _ in tables]
        residual: list[Expression] = list(rest)
        for one in conjuncts(select.args["where"].this if select.args.get("where") else None):
            predicate = convert(one, scope)
            sides = {scope.side_of(column) for column in columns_of(predicate)}
            (filters[sides.pop()] if len(sides) == 1 else residual).append(predicate)
        aggregate, having, output = self._result(select, scope)
        needed = self._needed(join, residual, aggregate, output, having)
        return EdgeQuery(
            name, text, lateness_us,
            tuple(self._side(number, scope, filters[number], needed) for number in range(len(tables))),
            join, _all_of(residual), aggregate, having, output,
            self._sort(select, scope, output, aggregate),
            {stream: declared for _, stream, declared in scope.tables},
        )  # fmt: skip

    def _table(self, table: exp.Expr) -> tuple[str, str, Stream]:
        found = self._streams.get(table.name.lower()) if isinstance(table, exp.Table) else None
        if found is None or table.args.get("db"):
            raise Unsupported(
                "UNKNOWN_STREAM", f"there is no stream {table.sql()!r}; there are {sorted(self._streams)}"
            )
        strange = [column.type for column in found[1].schema.columns if not is_carried(column.type)]
        if strange:
            raise Unsupported("WRONG_TYPE", f"{strange[0]} columns are not carried at the edge")
        return table.alias_or_name.lower(), found[0], found[1]

    def _join(self, join: exp.Join, scope: Scope) -> tuple[IntervalJoinSpec, list[Expression]]:
        """Equal columns and a bound on the difference of the two times; anything else is left to a filter."""
        if join.args.get("side") or join.kind not in ("", "INNER") or not join.args.get("on"):
            raise Unsupported("UNSUPPORTED", "only JOIN … ON, inner")
        keys: list[tuple[str, str]] = []
        bounds: tuple[int, int] | None = None
        rest: list[Expression] = []
        times = scope.times()
        for one in conjuncts(join.args["on"]):
            if isinstance(one, exp.Between) and (found := self._bounds(one, scope, times)) is not None:
                bounds = found
                continue
            predicate = convert(one, scope)
            match predicate:
                case Call("=", (ColumnRef(left), ColumnRef(right))) if scope.side_of(left) != scope.side_of(right):
                    keys.append((left, right) if scope.side_of(left) == 0 else (right, left))
                case _:
                    rest.append(predicate)
        if not keys or bounds is None:
            raise Unsupported(
                "UNBOUNDED", "a join needs equal columns and b.time BETWEEN a.time - INTERVAL … AND a.time + INTERVAL …"
            )
        spec = IntervalJoinSpec(
            (tuple(left for left, _ in keys), tuple(right for _, right in keys)), times, bounds[0], bounds[1]
        )
        return spec, rest

    def _bounds(self, between: exp.Between, scope: Scope, times: tuple[str, str]) -> tuple[int, int] | None:
        """(before, after) of `right BETWEEN left - before AND left + after`, also when written the other way round."""
        if not isinstance(between.this, exp.Column):
            return None
        subject = scope.column(between.this)
        low, high = interval_us(between.args["low"], scope), interval_us(between.args["high"], scope)
        if low is None or high is None or low[0] != high[0] or {subject, low[0]} != set(times):
            return None
        return (-low[1], high[1]) if subject == times[1] else (high[1], -low[1])

    def _result(
        self, select: exp.Select, scope: Scope
    ) -> tuple[WindowAggregateSpec | None, Expression | None, tuple[tuple[str, Expression], ...]]:
        group = select.args.get("group")
        having = select.args.get("having")
        aliases = {item.alias.lower(): item.this for item in select.expressions if isinstance(item, exp.Alias)}
        if group is None:
            if having or any(select.find_all(exp.AggFunc)):
                raise Unsupported("UNBOUNDED", "an aggregate needs GROUP BY … WINDOW(time, 'size')")
            return None, None, _named(select, lambda item: convert(item, scope))
        keys, window = self._group(group, scope)
        grouped = Grouped(scope, keys)
        output = _named(select, grouped.convert)
        kept = None
        if having is not None:
            kept = grouped.convert(_without_aliases(having.this, aliases, scope))
        return WindowAggregateSpec(keys, *window, tuple(grouped.aggregations.values())), kept, output

    def _group(self, group: exp.Group, scope: Scope) -> tuple[tuple[str, ...], tuple[str, int, int]]:
        keys: list[str] = []
        window: tuple[str, int, int] | None = None
        for item in group.expressions:
            if isinstance(item, exp.Anonymous) and item.name == _WINDOW and window is None:
                window = window_of(item, scope)
            elif isinstance(item, exp.Column):
                keys.append(scope.column(item))
            else:
                raise Unsupported("UNSUPPORTED", f"GROUP BY takes columns and one WINDOW, not {item.sql('spark')}")
        if window is None or len(group.expressions) != len(keys) + 1:
            raise Unsupported("UNBOUNDED", "GROUP BY needs a WINDOW(time, 'size' [, 'slide'])")
        return tuple(dict.fromkeys(keys)), window

    def _needed(
        self, join: IntervalJoinSpec | None, residual: list[Expression], aggregate: WindowAggregateSpec | None,
        output: tuple[tuple[str, Expression], ...], having: Expression | None,
    ) -> set[str]:  # fmt: skip
        """Columns that must travel beyond the entries; the others are left behind there."""
        needed = {column for one in residual for column in columns_of(one)}
        if join is not None:
            needed |= {*join.keys[0], *join.keys[1], *join.times}
        if aggregate is not None:
            sources = {one.column for one in aggregate.aggregations if one.column is not None}
            return needed | {*aggregate.keys, aggregate.time, *sources}
        return needed | {column for _, expression in output for column in columns_of(expression)}

    def _side(self, number: int, scope: Scope, filters: list[Expression], needed: set[str]) -> Side:
        """Filters see the stream's own names; what leaves carries the names of the scope."""
        columns = scope.columns_of_side(number)
        kept = [(name, ColumnRef(raw)) for name, raw in columns.items() if name in needed]
        if not kept:
            kept = [(name, ColumnRef(raw)) for name, raw in columns.items() if raw == scope.tables[number][2].time]
        predicate = _all_of(filters)
        return Side(scope.tables[number][1], None if predicate is None else _renamed(predicate, columns), tuple(kept))

    def _sort(
        self, select: exp.Select, scope: Scope, output: tuple[tuple[str, Expression], ...],
        aggregate: WindowAggregateSpec | None,
    ) -> SortSpec | None:  # fmt: skip
        order = select.args.get("order")
        if order is None:
            return None
        names = {name.lower(): name for name, _ in output}
        keys: list[str] = []
        for item in order.expressions:
            if item.args.get("desc") or item.args.get("nulls_first") is False:
                raise Unsupported("UNSUPPORTED", "ORDER BY is ascending, nulls first")
            wanted = next(
                (name for (name, _), shown in zip(output, select.expressions, strict=True)
                 if shown.unalias().sql("spark").lower() == item.this.sql("spark").lower()),
                names.get(item.this.sql("spark").lower()),
            )  # fmt: skip
            if wanted is None:
                raise Unsupported("UNSUPPORTED", f"ORDER BY {item.this.sql('spark')} is not among the selected columns")
            keys.append(wanted)
        first = dict(output)[keys[0]]
        lags = {} if aggregate is None else {START: aggregate.size_us - 1, END: -1}
        if aggregate is None:
            lags = dict.fromkeys(scope.times(), 0)
        if not isinstance(first, ColumnRef) or first.name not in lags:
            raise Unsupported("UNBOUNDED", "an endless stream can only be ordered by its time first")
        return SortSpec(tuple(keys), lags[first.name])


def _named(select: exp.Select, to_expression: Callable[[exp.Expr], Expression]) -> tuple[tuple[str, Expression], ...]:
    output: list[tuple[str, Expression]] = []
    for item in select.expressions:
        if item.is_star:
            raise Unsupported("UNSUPPORTED", "name the columns: * is not supported at the edge")
        name = item.alias_or_name or item.sql("spark")
        output.append((name, to_expression(item.unalias())))
    if len({name.lower() for name, _ in output}) < len(output):
        raise Unsupported("UNSUPPORTED", "two columns of the result have one name")
    return tuple(output)


def _without_aliases(condition: exp.Expr, aliases: Mapping[str, exp.Expr], scope: Scope) -> exp.Expr:
    """HAVING may name a result column, unless a stream has a column of that name."""

    def replaced(node: exp.Expr) -> exp.Expr:
        if (
            isinstance(node, exp.Column)
            and not node.table
            and not scope.has(node.name)
            and node.name.lower() in aliases
        ):
            return aliases[node.name.lower()].copy()
        return node

    return condition.copy().transform(replaced)


def _renamed(expression: Expression, names: Mapping[str, str]) -> Expression:
    match expression:
        case ColumnRef(name):
            return ColumnRef(names[name])
        case Call(function, arguments):
            return Call(function, tuple(_renamed(argument, names) for argument in arguments))
    return expression


def _all_of(predicates: list[Expression]) -> Expression | None:
    found: Expression | None = None
    for predicate in predicates:
        found = predicate if found is None else Call("and", (found, predicate))
    return found
