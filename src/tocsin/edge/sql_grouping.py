"""GROUP BY at the edge: aggregate calls become columns of a window aggregate, WINDOW(…) its size and slide."""

from __future__ import annotations

from sqlglot import exp

from tocsin.edge.expressions import Call, ColumnRef, Expression
from tocsin.edge.operators.aggregate import END, START, Aggregation
from tocsin.edge.sql_expressions import Scope, Unsupported, convert
from tocsin.model.duration import parse_duration_s


class Grouped:
    """Expressions after grouping: aggregates become columns of their own, keys and the window's ends stay."""

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
                raise Unsupported("UNKNOWN_COLUMN", f"{item.sql('spark')} is neither grouped by nor aggregated")
            return ColumnRef(name)
        return None

    def _aggregate(self, item: exp.AggFunc) -> Expression:
        if item.this is None or isinstance(item.this, exp.Star | exp.Literal):
            column = None
        elif isinstance(item.this, exp.Column):
            column = self._scope.column(item.this)
        else:
            raise Unsupported("UNSUPPORTED", f"{item.sql('spark')}: aggregates take a column")
        match item:
            case exp.Avg() if column is not None:
                return Call("/", (self._column("sum", column), self._column("count", column)))
            case exp.Sum() | exp.Min() | exp.Max() if column is not None:
                return self._column(type(item).__name__.lower(), column)
            case exp.Count() if not item.args.get("expressions"):
                return self._column("count", column)
        raise Unsupported("UNSUPPORTED", f"{item.sql('spark')}: there are SUM, COUNT, MIN, MAX and AVG")

    def _column(self, function: str, column: str | None) -> ColumnRef:
        known = self.aggregations.setdefault(
            (function, column), Aggregation(f"_{function}{len(self.aggregations)}", function, column)
        )
        return ColumnRef(known.output)


def window_of(item: exp.Anonymous, scope: Scope) -> tuple[str, int, int]:
    arguments = item.expressions
    if not 2 <= len(arguments) <= 3 or not isinstance(arguments[0], exp.Column):
        raise Unsupported("SYNTAX", "WINDOW(time, 'size' [, 'slide'])")
    time = scope.column(arguments[0])
    if time not in scope.times():
        raise Unsupported("UNSUPPORTED", f"{arguments[0].sql('spark')} is not the event time of its stream")
    lengths = [parse_duration_s(one.name) if isinstance(one, exp.Literal) else None for one in arguments[1:]]
    size_s, slide_s = lengths[0], lengths[-1]
    if size_s is None or slide_s is None or slide_s > size_s:
        raise Unsupported("SYNTAX", "a window has a positive size and a slide no longer than it")
    return time, round(size_s * 1e6), round(slide_s * 1e6)
