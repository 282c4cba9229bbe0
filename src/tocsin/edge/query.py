"""`CREATE EDGE QUERY … AS SELECT …`: from text to a compiled query.

    CREATE EDGE QUERY HighUse LATENESS 10 SECONDS INTO Alerts AS
    SELECT meter, window.start AS since, SUM(kwh) AS total FROM Readings WHERE kwh > 0
    GROUP BY meter, WINDOW(ts, '1 hour', '15 minutes') HAVING SUM(kwh) > 5 ORDER BY since, meter

The SELECT is Spark SQL: Spark returns the same rows for it on the raw readings. A query that an endless stream or a
small node cannot run is rejected with a code. `LATENESS` bounds how far out of order readings may arrive. `INTO` names
the dataset for the results; without it the dataset has the query's name.

A query is compiled once to an `EdgeQuery`, which does not know the tree. `layout.py` then lays it out for the nodes at
which its streams enter. This module reads the clauses; `sql_expressions.py` reads their expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from itertools import pairwise

import sqlglot
from sqlglot import TokenType, exp

from tocsin.edge.operators.aggregate import END, START, WindowAggregateSpec
from tocsin.edge.operators.ordered import IntervalJoinSpec, SortSpec
from tocsin.edge.operators.stateless import Call, ColumnRef, Expression, columns_of
from tocsin.edge.plan import History, Stream, is_supported
from tocsin.edge.sql_expressions import GroupedConverter, QueryError, Scope, conjuncts, convert, interval_us, window_of
from tocsin.model.duration import parse_duration_s
from tocsin.model.schema import is_name

_HEADER = re.compile(
    r"\s*CREATE\s+EDGE\s+QUERY\s+(?P<name>\S+)(?:\s+LATENESS\s+(?P<lateness>.+?))?(?:\s+INTO\s+(?P<dataset>\S+))?"
    r"\s+AS\s+(?P<select>SELECT\b.*?);?\s*",
    re.IGNORECASE | re.DOTALL,
)


class QueryCode(StrEnum):
    SYNTAX = "SYNTAX"
    UNKNOWN_STREAM = "UNKNOWN_STREAM"
    UNKNOWN_COLUMN = "UNKNOWN_COLUMN"
    UNSUPPORTED = "UNSUPPORTED"
    """Valid SQL that an edge node does not run."""
    UNBOUNDED = "UNBOUNDED"
    """The result would never be complete or the state would grow for ever: no window, or no bound on a join's time."""
    WRONG_TYPE = "WRONG_TYPE"
    UNORDERED = "UNORDERED"
    """A live query whose rows come in no order of time, so that no floor can say which of them exist."""


@dataclass(frozen=True, slots=True)
class QueryRejected:
    code: QueryCode
    reason: str


Output = tuple[tuple[str, Expression], ...]
"""Named columns and how to compute them."""


@dataclass(frozen=True, slots=True)
class Side:
    """One stream of FROM. Its rows are filtered and its columns renamed where they enter."""

    stream: str
    predicate: Expression | None
    columns: Output


@dataclass(frozen=True, slots=True)
class EdgeQuery:
    name: str
    select: str
    """The SELECT as written, which Spark can run."""
    lateness_us: int
    sides: tuple[Side, ...]
    join: IntervalJoinSpec | None
    residual: Expression | None
    """The conditions of WHERE and ON that need both sides of a join."""
    aggregate: WindowAggregateSpec | None
    having: Expression | None
    output: Output
    sort: SortSpec | None
    streams: Mapping[str, Stream]
    dataset: str = ""
    """Where the results go."""

    @property
    def is_ordered(self) -> bool:
        """True if results come in order of time: windows as they close, or sorted rows. Live queries must."""
        return self.aggregate is not None or self.sort is not None

    def histories(self) -> dict[str, tuple[History, ...]]:
        """For each stream: how long its readings can count."""
        histories: dict[str, tuple[History, ...]] = {}
        for number, side in enumerate(self.sides):
            partner_us = 0 if self.join is None else max((self.join.before_us, self.join.after_us)[1 - number], 0)
            if self.aggregate is None:
                history = History(partner_us=partner_us)
            else:
                history = History(self.aggregate.size_us, self.aggregate.slide_us, partner_us)
            histories[side.stream] = (*histories.get(side.stream, ()), history)
        return histories


def parse_edge_query(text: str, streams: Mapping[str, Stream]) -> EdgeQuery | QueryRejected:
    """Compile a query. `streams` gives the declarations by name; names are not case-sensitive, as in Spark."""
    header = _HEADER.fullmatch(text)
    if header is None or not is_name(header["name"]):
        expected = "expected CREATE EDGE QUERY name [LATENESS duration] [INTO dataset] AS SELECT …"
        return QueryRejected(QueryCode.SYNTAX, expected)
    dataset = header["dataset"] or header["name"]
    if not is_name(dataset):
        return QueryRejected(QueryCode.SYNTAX, f"{dataset!r} is not a name")
    lateness_s = 0.0 if header["lateness"] is None else parse_duration_s(header["lateness"].strip("'\" "))
    if lateness_s is None:
        return QueryRejected(QueryCode.SYNTAX, f"{header['lateness']!r} is not a duration")
    try:
        select = sqlglot.parse_one(_with_window_function(header["select"]), read="spark")
    except sqlglot.errors.SqlglotError as error:
        return QueryRejected(QueryCode.SYNTAX, str(error).splitlines()[0])
    try:
        query = _Compiler(select, streams).compile(header["name"], header["select"], round(lateness_s * 1e6))
        return replace(query, dataset=dataset)
    except QueryError as error:
        code, reason = error.args
        return QueryRejected(QueryCode(code), reason)


def _with_window_function(select: str) -> str:
    """Rename the function WINDOW, because sqlglot takes `GROUP BY WINDOW(` for the WINDOW clause.

    The renaming works on tokens, so that text inside strings stays.
    """
    tokens = sqlglot.tokenize(select, read="spark")
    for token, following in reversed(list(pairwise(tokens))):
        if token.token_type is TokenType.WINDOW and following.token_type is TokenType.L_PAREN:
            select = f"{select[: token.start]}{_WINDOW}{select[token.end + 1 :]}"
    return select


_WINDOW = "tocsin_window"
_CLAUSES = {"kind", "expressions", "from_", "joins", "where", "group", "having", "order", "hint", "operation_modifiers"}


class _Compiler:
    """Compiles one query. It raises `QueryError`, which `parse_edge_query` turns into a rejection."""

    def __init__(self, select: exp.Expr, streams: Mapping[str, Stream]) -> None:
        if not isinstance(select, exp.Select):
            raise QueryError("UNSUPPORTED", "only a single SELECT")
        extra = [key for key, value in select.args.items() if value and key not in _CLAUSES]
        if extra:
            raise QueryError("UNSUPPORTED", f"{extra[0].upper().rstrip('_')} is not supported at the edge")
        self._joins: list[exp.Join] = select.args.get("joins") or []
        tables = [select.args["from_"].this, *(join.this for join in self._joins)] if select.args.get("from_") else []
        if not 1 <= len(tables) <= 2:
            raise QueryError("UNSUPPORTED", "FROM takes one stream, or two joined")
        declared = {name.lower(): (name, stream) for name, stream in streams.items()}
        self._select = select
        self._scope = Scope([_declared_table(table, declared) for table in tables])

    def compile(self, name: str, text: str, lateness_us: int) -> EdgeQuery:
        scope, where = self._scope, self._select.args.get("where")
        join, residual = self._join(self._joins[0]) if self._joins else (None, [])
        filters: list[list[Expression]] = [[] for _ in scope.tables]
        for condition in conjuncts(where.this if where else None):
            predicate = convert(condition, scope)
            sides = {scope.side_of(column) for column in columns_of(predicate)}
            (filters[sides.pop()] if len(sides) == 1 else residual).append(predicate)
        aggregate, having, output = self._result()
        needed = _needed_columns(join, residual, aggregate, output)
        return EdgeQuery(
            name,
            text,
            lateness_us,
            sides=tuple(self._side(number, predicates, needed) for number, predicates in enumerate(filters)),
            join=join,
            residual=_all_of(residual),
            aggregate=aggregate,
            having=having,
            output=output,
            sort=self._sort(output, aggregate),
            streams={stream: declared for _, stream, declared in scope.tables},
        )

    def _join(self, join: exp.Join) -> tuple[IntervalJoinSpec, list[Expression]]:
        """The join by equal columns and a bound on the difference of times, and the other conditions, for a filter."""
        if join.args.get("side") or join.kind not in ("", "INNER") or not join.args.get("on"):
            raise QueryError("UNSUPPORTED", "only JOIN … ON, inner")
        keys: list[tuple[str, str]] = []
        bounds: tuple[int, int] | None = None
        other_conditions: list[Expression] = []
        scope = self._scope
        for condition in conjuncts(join.args["on"]):
            interval = self._bounds(condition)
            if interval is not None:
                bounds = interval
                continue
            predicate = convert(condition, scope)
            match predicate:
                case Call("=", (ColumnRef(left), ColumnRef(right))) if scope.side_of(left) != scope.side_of(right):
                    keys.append((left, right) if scope.side_of(left) == 0 else (right, left))
                case _:
                    other_conditions.append(predicate)
        if not keys or bounds is None:
            raise QueryError(
                "UNBOUNDED", "a join needs equal columns and b.time BETWEEN a.time - INTERVAL … AND a.time + INTERVAL …"
            )
        left_keys, right_keys = zip(*keys, strict=True)
        return IntervalJoinSpec((left_keys, right_keys), scope.times(), *bounds), other_conditions

    def _bounds(self, between: exp.Expr) -> tuple[int, int] | None:
        """(before, after) of `right BETWEEN left - before AND left + after`, with the sides in either order.

        None if the condition is not a bound on the two event times.
        """
        if not isinstance(between, exp.Between) or not isinstance(between.this, exp.Column):
            return None
        scope, times = self._scope, self._scope.times()
        subject = scope.column(between.this)
        low, high = interval_us(between.args["low"], scope), interval_us(between.args["high"], scope)
        if low is None or high is None or low[0] != high[0] or {subject, low[0]} != set(times):
            return None
        return (-low[1], high[1]) if subject == times[1] else (high[1], -low[1])

    def _result(self) -> tuple[WindowAggregateSpec | None, Expression | None, Output]:
        select, scope = self._select, self._scope
        group = select.args.get("group")
        having = select.args.get("having")
        aliases = {item.alias.lower(): item.this for item in select.expressions if isinstance(item, exp.Alias)}
        if group is None:
            if having or any(select.find_all(exp.AggFunc)):
                raise QueryError("UNBOUNDED", "an aggregate needs GROUP BY … WINDOW(time, 'size')")
            return None, None, _named(select, lambda item: convert(item, scope))
        keys, window = self._group(group)
        grouped = GroupedConverter(scope, keys)
        output = _named(select, grouped.convert)
        condition = None if having is None else grouped.convert(_without_aliases(having.this, aliases, scope))
        return WindowAggregateSpec(keys, *window, tuple(grouped.aggregations.values())), condition, output

    def _group(self, group: exp.Group) -> tuple[tuple[str, ...], tuple[str, int, int]]:
        keys: list[str] = []
        window: tuple[str, int, int] | None = None
        for item in group.expressions:
            if isinstance(item, exp.Anonymous) and item.name == _WINDOW and window is None:
                window = window_of(item, self._scope)
            elif isinstance(item, exp.Column):
                keys.append(self._scope.column(item))
            else:
                raise QueryError("UNSUPPORTED", f"GROUP BY takes columns and one WINDOW, not {item.sql('spark')}")
        if window is None or len(group.expressions) != len(keys) + 1:
            raise QueryError("UNBOUNDED", "GROUP BY needs a WINDOW(time, 'size' [, 'slide'])")
        return tuple(dict.fromkeys(keys)), window

    def _side(self, number: int, filters: list[Expression], needed: set[str]) -> Side:
        """One stream of FROM. Its filters use the stream's column names; its output has the names of the scope."""
        _, name, stream = self._scope.tables[number]
        columns = self._scope.columns_of_side(number)
        kept = needed & set(columns) or {planned for planned, raw in columns.items() if raw == stream.time}
        predicate = _all_of([_renamed(filter_, columns) for filter_ in filters])
        return Side(name, predicate, tuple((key, ColumnRef(raw)) for key, raw in columns.items() if key in kept))

    def _sort(self, output: Output, aggregate: WindowAggregateSpec | None) -> SortSpec | None:
        order = self._select.args.get("order")
        if order is None:
            return None
        names = {name.lower(): name for name, _ in output}
        for (name, _), item in reversed(list(zip(output, self._select.expressions, strict=True))):
            names[item.unalias().sql("spark").lower()] = name
        keys: list[str] = []
        for item in order.expressions:
            if item.args.get("desc") or item.args.get("nulls_first") is False:
                raise QueryError("UNSUPPORTED", "ORDER BY is ascending, nulls first")
            key = names.get(item.this.sql("spark").lower())
            if key is None:
                raise QueryError("UNSUPPORTED", f"ORDER BY {item.this.sql('spark')} is not among the selected columns")
            keys.append(key)
        first = dict(output)[keys[0]]
        lags = dict.fromkeys(self._scope.times(), 0) if aggregate is None else {START: aggregate.size_us - 1, END: -1}
        if not isinstance(first, ColumnRef) or first.name not in lags:
            raise QueryError("UNBOUNDED", "an endless stream can only be ordered by its time first")
        return SortSpec(tuple(keys), lags[first.name])


def _declared_table(table: exp.Expr, streams: Mapping[str, tuple[str, Stream]]) -> tuple[str, str, Stream]:
    declared = streams.get(table.name.lower()) if isinstance(table, exp.Table) else None
    if declared is None or table.args.get("db"):
        reason = f"there is no stream {table.sql()!r}; the streams are {sorted(streams)}"
        raise QueryError("UNKNOWN_STREAM", reason)
    name, stream = declared
    unsupported = [column.type for column in stream.schema.columns if not is_supported(column.type)]
    if unsupported:
        raise QueryError("WRONG_TYPE", f"{unsupported[0]} columns are not supported at the edge")
    return table.alias_or_name.lower(), name, stream


def _needed_columns(
    join: IntervalJoinSpec | None,
    residual: list[Expression],
    aggregate: WindowAggregateSpec | None,
    output: Output,
) -> set[str]:
    """The columns that leave the entries."""
    needed = {column for predicate in residual for column in columns_of(predicate)}
    if join is not None:
        needed |= {*join.keys[0], *join.keys[1], *join.times}
    if aggregate is not None:
        sources = {item.column for item in aggregate.aggregations if item.column is not None}
        return needed | {*aggregate.keys, aggregate.time, *sources}
    return needed | {column for _, expression in output for column in columns_of(expression)}


def _named(select: exp.Select, to_expression: Callable[[exp.Expr], Expression]) -> Output:
    output: list[tuple[str, Expression]] = []
    for item in select.expressions:
        if item.is_star:
            raise QueryError("UNSUPPORTED", "name the columns: * is not supported at the edge")
        name = item.alias_or_name or item.sql("spark")
        output.append((name, to_expression(item.unalias())))
    if len({name.lower() for name, _ in output}) < len(output):
        raise QueryError("UNSUPPORTED", "two columns of the result have one name")
    return tuple(output)


def _without_aliases(condition: exp.Expr, aliases: Mapping[str, exp.Expr], scope: Scope) -> exp.Expr:
    """HAVING with its result columns replaced by their expressions. A stream's column of the same name has priority."""

    def replaced(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or node.table or scope.has(node.name):
            return node
        alias = aliases.get(node.name.lower())
        return node if alias is None else alias.copy()

    return condition.copy().transform(replaced)


def _renamed(expression: Expression, names: Mapping[str, str]) -> Expression:
    match expression:
        case ColumnRef(name):
            return ColumnRef(names[name])
        case Call(function, arguments):
            return Call(function, tuple(_renamed(argument, names) for argument in arguments))
    return expression


def _all_of(predicates: list[Expression]) -> Expression | None:
    return reduce(lambda left, right: Call("and", (left, right)), predicates) if predicates else None
