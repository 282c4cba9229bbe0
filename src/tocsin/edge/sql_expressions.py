"""Scalar SQL, as sqlglot parses it, to the expressions an edge node evaluates; and the names it may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from tocsin.edge.expressions import Call, ColumnRef, Constant, Expression
from tocsin.edge.plan import Stream
from tocsin.model.duration import parse_duration_s


class Unsupported(Exception):
    """Raised and caught inside the compiler only; `code` is one of QueryCode's."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Scope:
    """The columns of FROM. With one stream they keep their names; with two they are `alias.column` inside the plan."""

    def __init__(self, tables: list[tuple[str, str, Stream]]) -> None:
        self.tables = tables
        """(alias, stream, its declaration)."""
        self._columns: list[dict[str, str]] = [
            {(name if len(tables) == 1 else f"{alias}.{name}"): name for name in stream.schema.names}
            for alias, _, stream in tables
        ]

    def column(self, column: exp.Column) -> str:
        name, table = column.name.lower(), column.table.lower()
        found = [
            known
            for (alias, _, _), columns in zip(self.tables, self._columns, strict=True)
            for known, raw in columns.items()
            if raw.lower() == name and table in ("", alias)
        ]
        if len(found) != 1:
            problem = "is in no stream" if not found else "is in both streams: say which"
            raise Unsupported("UNKNOWN_COLUMN", f"{column.sql('spark')} {problem}")
        return found[0]

    def has(self, name: str) -> bool:
        return any(raw.lower() == name.lower() for columns in self._columns for raw in columns.values())

    def side_of(self, column: str) -> int:
        return next(number for number, columns in enumerate(self._columns) if column in columns)

    def columns_of_side(self, number: int) -> dict[str, str]:
        """Name in the plan → name in the stream."""
        return self._columns[number]

    def times(self) -> tuple[str, str]:
        """The event times of the first and the last stream, which are the same if there is only one."""
        found = [
            next(known for known, raw in columns.items() if raw == stream.time)
            for (_, _, stream), columns in zip(self.tables, self._columns, strict=True)
        ]
        return found[0], found[-1]


Leaf = Callable[[exp.Expr], "Expression | None"]

_BINARY: dict[type[exp.Expr], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=",
    exp.GT: ">", exp.GTE: ">=", exp.And: "and", exp.Or: "or",
}  # fmt: skip
_UNARY: dict[type[exp.Expr], str] = {
    exp.Not: "not",
    exp.Neg: "negate",
    exp.Abs: "abs",
    exp.Upper: "upper",
    exp.Lower: "lower",
}


def convert(item: exp.Expr, scope: Scope, leaf: Leaf = lambda item: None) -> Expression:
    """`leaf` is asked first at every node: it knows what a column or an aggregate means where it stands."""
    known = leaf(item)
    if known is not None:
        return known

    def inner(one: exp.Expr) -> Expression:
        return convert(one, scope, leaf)

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
            found: Expression = Call("=", (inner(item.this), inner(item.expressions[0])))
            for one in item.expressions[1:]:
                found = Call("or", (found, Call("=", (inner(item.this), inner(one)))))
            return found
        case exp.Is() if isinstance(item.expression, exp.Null):
            return Call("is null", (inner(item.this),))
        case exp.Coalesce():
            return Call("coalesce", (inner(item.this), *(inner(one) for one in item.expressions)))
    if type(item) in _BINARY:
        return Call(_BINARY[type(item)], (inner(item.this), inner(item.expression)))
    if type(item) in _UNARY:
        return Call(_UNARY[type(item)], (inner(item.this),))
    raise Unsupported("UNSUPPORTED", f"{item.sql('spark')} is not supported at the edge")


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    if condition is not None:
        yield from condition.unnest().flatten() if isinstance(condition.unnest(), exp.And) else [condition.unnest()]


def interval_us(item: exp.Expr, scope: Scope) -> tuple[str, int] | None:
    """(column, offset) of `column`, `column + INTERVAL …` or `column - INTERVAL …`."""
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
