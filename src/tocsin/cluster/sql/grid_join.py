"""Which `near` conditions of a query become an equality of grid cells, and what has to be exploded for each.

Without this a `near` between two relations is a nested loop over all pairs. A `near` qualifies when it is one of the
conditions that must all hold (of a WHERE or an ON), one pair of coordinates comes from one relation of the same FROM,
and the other pair from somewhere else: another relation, an outer query, or the channel's parameters. That relation
is joined with the cells of its cover, and the condition gets `cell of the cover = cell of the other point` besides the
exact test. Every other `near` stays the exact expression.

Reads the tree, changes nothing: `channel_query` writes the SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from tocsin.cluster.sql.geo_calls import GeoCall, Span
from tocsin.cluster.sql.query_tables import TableReference
from tocsin.cluster.sql.tokens import Token


@dataclass(frozen=True, slots=True)
class FromItem:
    """A relation of a FROM clause that can be wrapped together with the cells of its cover."""

    name: str
    """What qualifies its columns, in upper case."""
    span: Span
    """With its alias."""
    is_new: bool
    is_seen: bool
    """Not what a SEMI or ANTI JOIN only compares with: its columns, a cell of ours included, end there."""


@dataclass(frozen=True, slots=True)
class Grid:
    number: int
    """From 1 in a query; tells the names of its relation and column."""
    call: GeoCall
    item: FromItem
    point: tuple[Span, Span]
    """Latitude and longitude on the item that is exploded."""
    other: tuple[Span, Span]
    radius: Span
    literal_radius_m: float | None
    radius_marker: str | None
    """The parameter that is the radius, when it is one and nothing else."""
    select: exp.Select

    @property
    def relation(self) -> str:
        return f"_tocsin_g{self.number}"

    @property
    def column(self) -> str:
        return f"_tocsin_cell{self.number}"


def find_grids(
    ast: exp.Query, references: tuple[TableReference, ...], tokens: tuple[Token, ...], calls: tuple[GeoCall, ...]
) -> tuple[Grid, ...]:
    by_start = {call.span.start: call for call in calls if call.name == "NEAR"}
    grids: list[Grid] = []
    for select in ast.find_all(exp.Select):
        if any(select.find_all(exp.Pivot)):
            continue  # a pivot groups by all columns it is not told of, the cell included
        items = dict(_items(select, references, tokens))
        for condition, joined in _conditions(select):
            call = by_start.get(condition.meta.get("start", -1))
            if call is not None and len(call.arguments) == 5 and len(condition.expressions) == 5:
                grid = _grid(len(grids) + 1, select, condition, call, items, joined)
                if grid is not None:
                    grids.append(grid)
    return tuple(grids)


def _grid(
    number: int, select: exp.Select, near: exp.Expr, call: GeoCall, items: dict[int, FromItem], joined: exp.Expr | None
) -> Grid | None:
    lat1, lon1, lat2, lon2, radius = near.expressions
    spans = call.arguments
    choices = []
    for first, pair, other_pair in ((0, (lat1, lon1), (lat2, lon2)), (2, (lat2, lon2), (lat1, lon1))):
        item = _only_item(pair, items.values())
        others = _qualifiers(*other_pair, radius)
        if item is None or not others or None in others or item.name in others:
            continue
        if not _qualifiers(*other_pair) or (joined is not None and item is not items.get(id(joined))):
            continue
        choices.append((not item.is_new, first, item))
    if not choices:
        return None
    _, first, item = min(choices, key=lambda choice: choice[:2])
    second = 2 - first
    return Grid(
        number, call, item, (spans[first], spans[first + 1]), (spans[second], spans[second + 1]), spans[4],
        _literal(radius), str(radius.this) if isinstance(radius, exp.Placeholder) else None, select,
    )  # fmt: skip


def _conditions(select: exp.Select) -> Iterator[tuple[exp.Expr, exp.Expr | None]]:
    """Each condition that must hold, with the one relation that may be exploded for it when not any may.

    `a LEFT JOIN b ON near(…)` keeps each row of `a` once, so only `b` may be exploded. For a RIGHT or FULL join neither
    may without more ado.
    """
    where = select.args.get("where")
    if where is not None:
        yield from ((condition, None) for condition in _conjuncts(where.this))
    for join in select.args.get("joins") or ():
        on = join.args.get("on")
        if on is None or join.side in ("RIGHT", "FULL") or join.args.get("method"):
            continue
        inner = join.side == "" and join.kind in ("", "INNER", "CROSS")
        only = None if inner else join.this
        yield from ((condition, only) for condition in _conjuncts(on))


def _conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(condition, exp.And):
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
    elif isinstance(condition, exp.Paren):
        yield from _conjuncts(condition.this)
    else:
        yield condition


def _qualifiers(*expressions: exp.Expr) -> set[str | None]:
    """The relations whose columns are used, in upper case; `:` for parameters, None for what cannot be told."""
    found: set[str | None] = set()
    for expression in expressions:
        for node in expression.walk():
            if isinstance(node, exp.Column):
                found.add(node.table.upper() or None)
            elif isinstance(node, exp.Placeholder):
                found.add(":")
            elif isinstance(node, exp.Query):
                found.add(None)
    return found


def _only_item(pair: tuple[exp.Expr, exp.Expr], items: Iterable[FromItem]) -> FromItem | None:
    used = _qualifiers(*pair)
    return next((item for item in items if used == {item.name}), None)


def _literal(radius: exp.Expr) -> float | None:
    return float(radius.this) if isinstance(radius, exp.Literal) and radius.is_number else None


def _items(
    select: exp.Select, references: tuple[TableReference, ...], tokens: tuple[Token, ...]
) -> Iterator[tuple[int, FromItem]]:
    """By the identity of their nodes."""
    from_ = select.args.get("from_")
    relations = [] if from_ is None else [(from_.this, True)]
    relations += [(join.this, join.kind not in ("SEMI", "ANTI")) for join in select.args.get("joins") or ()]
    for relation, is_seen in relations:
        if isinstance(relation, exp.Table) and isinstance(relation.this, exp.Identifier):
            start = int(relation.this.meta["start"])
            end = next((table.end for table in references if table.start == start), int(relation.this.meta["end"]) + 1)
            span: Span | None = Span(start, _end_with_alias(relation, end))
        elif isinstance(relation, exp.Subquery) and relation.alias:
            span = _subquery_span(relation, tokens)
        else:
            span = None
        alias = relation.args.get("alias")
        if span is None or (alias is not None and alias.args.get("columns")) or relation.args.get("joins"):
            continue
        is_new = any(table.is_new and span.holds(table.start) for table in references)
        yield id(relation), FromItem(_name(relation, references), span, is_new, is_seen)


def _name(relation: exp.Expr, references: tuple[TableReference, ...]) -> str:
    """`NEW X` without an alias is the table `NEW_X` in the tree, and `X` to the author."""
    if isinstance(relation, exp.Table) and not relation.alias:
        start = relation.this.meta["start"]
        return next((table.name for table in references if table.start == start), relation.name).upper()
    return str(relation.alias_or_name).upper()


def _end_with_alias(relation: exp.Expr, end: int) -> int:
    alias = relation.args.get("alias")
    return end if alias is None else int(alias.this.meta["end"]) + 1


def _subquery_span(relation: exp.Subquery, tokens: tuple[Token, ...]) -> Span | None:
    """From the opening parenthesis, found backwards from the alias."""
    alias_start = relation.args["alias"].this.meta["start"]
    index = next((index for index, token in enumerate(tokens) if token.start == alias_start), 0) - 1
    if index >= 0 and tokens[index].upper == "AS":
        index -= 1
    depth = 0
    while index >= 0:
        depth += tokens[index].is_symbol(")") - tokens[index].is_symbol("(")
        if depth == 0:
            return Span(tokens[index].start, _end_with_alias(relation, 0))
        index -= 1
    return None
