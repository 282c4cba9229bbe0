"""Converts SQL expressions, as sqlglot parses them, to the expressions and aggregations of an edge node.

`Scope` resolves column names, `convert` translates scalar SQL, `GroupedConverter` and `window_of` translate GROUP BY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce

from sqlglot import exp

from tocsin.edge.operators.aggregate import END, START, Aggregation
from tocsin.edge.operators.stateless import Call, ColumnRef, Constant, Expression
from tocsin.edge.plan import Stream
from tocsin.model.duration import parse_duration_s


class QueryError(Exception):
    """Raised and caught inside the compiler only. Its arguments are a value of `QueryCode` and a reason."""


class Scope:
    """The columns of FROM. With one stream they keep their names; with two they are `alias.column` in the plan."""

    def __init__(self, tables: list[tuple[str, str, Stream]]) -> None:
        self.tables = tables
        """(alias, stream, declaration of the stream)."""
        self._columns: list[dict[str, str]] = [
            {(name if len(tables) == 1 else f"{alias}.{name}"): name for name in stream.schema.names}
            for alias, _, stream in tables
        ]

    def column(self, column: exp.Column) -> str:
        name, table = column.name.lower(), column.table.lower()
        matches = [
            planned
            for (alias, _, _), columns in zip(self.tables, self._columns, strict=True)
            for planned, raw in columns.items()
            if raw.lower() == name and table in ("", alias)
        ]
        if len(matches) != 1:
            problem = "is in both streams: add the name of one" if matches else "is in no stream"
            raise QueryError("UNKNOWN_COLUMN", f"{column.sql('spark')} {problem}")
        return matches[0]

    def has(self, name: str) -> bool:
        return any(raw.lower() == name.lower() for columns in self._columns for raw in columns.values())

    def side_of(self, column: str) -> int:
        return next(number for number, columns in enumerate(self._columns) if column in columns)

    def columns_of_side(self, number: int) -> dict[str, str]:
        """Column name in the plan → column name in the stream."""
        return self._columns[number]

    def times(self) -> tuple[str, str]:
        """The event time columns of the first and the last stream, which are equal if there is only one stream."""
        times = [
            next(planned for planned, raw in columns.items() if raw == stream.time)
            for (_, _, stream), columns in zip(self.tables, self._columns, strict=True)
        ]
        return times[0], times[-1]


Leaf = Callable[[exp.Expr], "Expression | None"]

_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=",
    exp.GT: ">", exp.GTE: ">=", exp.And: "and", exp.Or: "or", exp.Not: "not", exp.Neg: "negate", exp.Abs: "abs",
    exp.Upper: "upper", exp.Lower: "lower",
}  # fmt: skip


def convert(item: exp.Expr, scope: Scope, leaf: Leaf = lambda item: None) -> Expression:
    """Convert scalar SQL.

    `leaf` is called first for every item; it converts columns and aggregates, or returns None.
    """
    special = leaf(item)
    if special is not None:
        return special

    def inner(item: exp.Expr) -> Expression:
        return convert(item, scope, leaf)

    match item:
        case exp.Paren():
            return inner(item.this)
        case exp.Column():
            return ColumnRef(scope.column(item))
        case exp.Literal():
            if item.is_string:
                return Constant(item.name)
            return Constant(int(item.name) if item.name.isdigit() else float(item.name))
        case exp.Boolean():
            return Constant(bool(item.this))
        case exp.Null():
            return Constant(None)
        case exp.Between():
            low = Call(">=", (inner(item.this), inner(item.args["low"])))
            return Call("and", (low, Call("<=", (inner(item.this), inner(item.args["high"])))))
        case exp.In() if item.expressions:
            equalities = (Call("=", (inner(item.this), inner(value))) for value in item.expressions)
            return reduce(lambda left, right: Call("or", (left, right)), equalities)
        case exp.Is() if isinstance(item.expression, exp.Null):
            return Call("is null", (inner(item.this),))
        case exp.Coalesce():
            return Call("coalesce", (inner(item.this), *map(inner, item.expressions)))
    if type(item) not in _FUNCTIONS:
        raise QueryError("UNSUPPORTED", f"{item.sql('spark')} is not supported at the edge")
    arguments = (item.this, item.expression) if isinstance(item, exp.Binary) else (item.this,)
    return Call(_FUNCTIONS[type(item)], tuple(map(inner, arguments)))


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    if condition is not None:
        yield from condition.unnest().flatten() if isinstance(condition.unnest(), exp.And) else [condition.unnest()]


def interval_us(item: exp.Expr, scope: Scope) -> tuple[str, int] | None:
    """(column, offset) of `column`, `column + INTERVAL …` or `column - INTERVAL …`; None for anything else."""
    item = item.unnest()
    if isinstance(item, exp.Column):
        return scope.column(item), 0
    if isinstance(item, exp.Add | exp.Sub) and isinstance(item.this, exp.Column):
        interval = item.expression
        if isinstance(interval, exp.Interval) and isinstance(interval.this, exp.Literal):
            length_s = parse_duration_s(f"{interval.this.name} {interval.args.get('unit') or ''}".strip())
            if length_s is not None:
                sign = 1 if isinstance(item, exp.Add) else -1
                return scope.column(item.this), sign * round(length_s * 1e6)
    return None


class GroupedConverter:
    """Converts expressions over groups: each aggregate becomes a column; keys, window.start and window.end stay."""

    def __init__(self, scope: Scope, keys: tuple[str, ...]) -> None:
        self._scope = scope
        self._keys = keys
        self.aggregations: dict[tuple[str, str | None], Aggregation] = {}

    def convert(self, item: exp.Expr) -> Expression:
        return convert(item, self._scope, self._leaf)

    def _leaf(self, item: exp.Expr) -> Expression | None:
        if isinstance(item, exp.AggFunc):
            return self._aggregate(item)
        if isinstance(item, exp.Column):
            if item.table.lower() == "window" and item.name.lower() in ("start", "end"):
                return ColumnRef(START if item.name.lower() == "start" else END)
            name = self._scope.column(item)
            if name not in self._keys:
                raise QueryError("UNKNOWN_COLUMN", f"{item.sql('spark')} is neither grouped by nor aggregated")
            return ColumnRef(name)
        return None

    def _aggregate(self, item: exp.AggFunc) -> Expression:
        if item.this is None or isinstance(item.this, exp.Star | exp.Literal):
            column = None
        elif isinstance(item.this, exp.Column):
            column = self._scope.column(item.this)
        else:
            hint = ", and DISTINCT is APPROX_COUNT_DISTINCT" if isinstance(item.this, exp.Distinct) else ""
            raise QueryError("UNSUPPORTED", f"{item.sql('spark')}: aggregates take a column{hint}")
        match item:
            case exp.Avg() if column is not None:
                return Call("/", (self._column("sum", column), self._column("count", column)))
            case exp.Sum() | exp.Min() | exp.Max() if column is not None:
                return self._column(type(item).__name__.lower(), column)
            case exp.Count() if not item.args.get("expressions"):
                return self._column("count", column)
            case exp.ApproxDistinct() if column is not None and not item.args.get("accuracy"):
                return self._column("distinct", column)
        known = "SUM, COUNT, MIN, MAX, AVG and APPROX_COUNT_DISTINCT(column)"
        raise QueryError("UNSUPPORTED", f"{item.sql('spark')}: there are {known}")

    def _column(self, function: str, column: str | None) -> ColumnRef:
        aggregation = Aggregation(f"_{function}{len(self.aggregations)}", function, column)
        return ColumnRef(self.aggregations.setdefault((function, column), aggregation).output)


def window_of(item: exp.Anonymous, scope: Scope) -> tuple[str, int, int]:
    """(time column, size, slide) of `WINDOW(time, 'size' [, 'slide'])`, in microseconds."""
    arguments = item.expressions
    if not 2 <= len(arguments) <= 3 or not isinstance(arguments[0], exp.Column):
        raise QueryError("SYNTAX", "WINDOW(time, 'size' [, 'slide'])")
    time = scope.column(arguments[0])
    if time not in scope.times():
        raise QueryError("UNSUPPORTED", f"{arguments[0].sql('spark')} is not the event time of its stream")
    lengths = [parse_duration_s(length.name) if isinstance(length, exp.Literal) else None for length in arguments[1:]]
    size_s, slide_s = lengths[0], lengths[-1]
    if size_s is None or slide_s is None or slide_s > size_s:
        raise QueryError("SYNTAX", "a window has a positive size and a slide no longer than it")
    return time, round(size_s * 1e6), round(slide_s * 1e6)
