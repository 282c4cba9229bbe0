"""Decides how a query's `near` conditions become joins that Spark can plan well.

Three questions, answered from tokens and syntax tree; nothing is changed here:
- `find_geo_calls`: where does the query call `near` and `distance_m`?
- `find_grid_joins`: which `near` becomes an equality of grid cells? Without this, a `near` between two relations is a
  nested loop over all pairs. A `near` qualifies if it is one of the conditions that must all hold (of a WHERE or an
  ON), one pair of coordinates comes from one relation of the same FROM, and the other pair comes from elsewhere: from
  another relation, an outer query, or the channel's parameters. The first relation is joined with the cells of its
  cover, and the condition becomes `cell of the cover = cell of the other point` besides the exact test. Any other
  `near` remains the exact expression.
- `direct_join_offsets`: may the query be joined with its subscriptions directly, instead of through LATERAL? For a
  query of only FROM, WHERE and a list of columns both mean the same, and Spark plans the direct join better. With
  LATERAL it computes a `near` join for each distinct radius before it considers the subscriptions [measured: a nested
  loop over all reports and users]. Only queries with a grid join in their outermost FROM use it; others use LATERAL.

`channel_query` calls these functions, `query_sql` writes the SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tocsin.cluster.sql.query_scan import Marker
from tocsin.cluster.sql.tokens import Span, Token, TokenKind

SIGNATURES = {
    "NEAR": ("lat1", "lon1", "lat2", "lon2", "radius_m"),
    "DISTANCE_M": ("lat1", "lon1", "lat2", "lon2"),
}
_PLAIN_CLAUSES = {"expressions", "from_", "joins", "where", "with_", "hint"}
"""The parts of a SELECT (sqlglot's names) that a query may have if it is joined directly."""


@dataclass(frozen=True, slots=True)
class TableReference:
    """A dataset in a FROM clause."""

    dataset: str
    """The dataset's name as written, without `NEW`."""
    is_new: bool
    start: int
    end: int
    """The offset after `X` or `NEW X`, without the alias."""
    alias: str | None

    @property
    def name(self) -> str:
        """The name that qualifies its columns."""
        return self.alias or self.dataset

    @property
    def alias_to_add(self) -> str:
        """The view has another name than the dataset. Without an alias in the query, it gets the dataset's name."""
        return "" if self.alias else f" AS `{self.dataset}`"


@dataclass(frozen=True, slots=True)
class GeoCall:
    name: str
    """`NEAR` or `DISTANCE_M`."""
    span: Span
    """The text of the call, from the name to the closing parenthesis."""
    arguments: tuple[Span, ...]


def find_geo_calls(tokens: Sequence[Token]) -> tuple[GeoCall, ...]:
    """The calls in the order of the text: nested calls follow the outer ones. A call without its `)` is left out."""
    calls = []
    for index, token in enumerate(tokens[:-1]):
        qualified = index > 0 and tokens[index - 1].is_symbol(".")
        if (
            token.kind is TokenKind.WORD
            and token.upper in SIGNATURES
            and not qualified
            and tokens[index + 1].is_symbol("(")
        ):
            closing = _closing_parenthesis(tokens, index + 1)
            if closing is not None:
                span = Span(token.start, tokens[closing].end)
                calls.append(GeoCall(token.upper, span, _arguments(tokens, index + 1, closing)))
    return tuple(calls)


def _closing_parenthesis(tokens: Sequence[Token], opening: int) -> int | None:
    """The index of the `)` that closes the `(` at `opening`, or None."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].is_symbol("("):
            depth += 1
        elif tokens[index].is_symbol(")"):
            depth -= 1
            if depth == 0:
                return index
    return None


def _arguments(tokens: Sequence[Token], opening: int, closing: int) -> tuple[Span, ...]:
    spans, depth, first = [], 0, opening + 1
    for index in range(opening + 1, closing + 1):
        token = tokens[index]
        if token.kind is TokenKind.SYMBOL and token.text in "([":
            depth += 1
        elif (token.is_symbol(",") and depth == 0) or index == closing:
            if index > first:
                spans.append(Span(tokens[first].start, tokens[index - 1].end))
            first = index + 1
        elif token.kind is TokenKind.SYMBOL and token.text in ")]":
            depth -= 1
    return tuple(spans)


@dataclass(frozen=True, slots=True)
class FromItem:
    """A relation of a FROM clause that can be joined with the cells of its cover."""

    name: str
    """The name that qualifies its columns, in upper case."""
    span: Span
    """The text of the relation, alias included."""
    is_new: bool
    is_visible: bool
    """False for the right side of a SEMI or ANTI JOIN: its columns, the added cell included, end at the join."""


@dataclass(frozen=True, slots=True)
class GridJoin:
    """A `near` that becomes an equality of grid cells."""

    number: int
    """Counted from 1 in a query. It is part of the names of the added relation and column."""
    call: GeoCall
    item: FromItem
    point: tuple[Span, Span]
    """Latitude and longitude of the relation that is joined with its cover."""
    other: tuple[Span, Span]
    """Latitude and longitude of the other point."""
    radius: Span
    literal_radius_m: float | None
    """The radius if it is a number in the query."""
    radius_marker: str | None
    """The name of the parameter if the radius is a parameter and nothing else."""
    select: exp.Select

    @property
    def relation(self) -> str:
        return f"_tocsin_g{self.number}"

    @property
    def column(self) -> str:
        return f"_tocsin_cell{self.number}"


def find_grid_joins(
    ast: exp.Query, references: tuple[TableReference, ...], tokens: tuple[Token, ...], calls: tuple[GeoCall, ...]
) -> tuple[GridJoin, ...]:
    by_start = {call.span.start: call for call in calls if call.name == "NEAR"}
    grids: list[GridJoin] = []
    for select in ast.find_all(exp.Select):
        if any(select.find_all(exp.Pivot)):
            continue  # a PIVOT groups by all columns that it does not name, the cell included
        items = dict(_items(select, references, tokens))
        for condition, joined in _conditions(select):
            call = by_start.get(condition.meta.get("start", -1))
            if call is not None and len(call.arguments) == 5 and len(condition.expressions) == 5:
                grid = _grid_join(len(grids) + 1, select, condition, call, items, joined)
                if grid is not None:
                    grids.append(grid)
    return tuple(grids)


def _grid_join(
    number: int, select: exp.Select, near: exp.Expr, call: GeoCall, items: dict[int, FromItem], joined: exp.Expr | None
) -> GridJoin | None:
    """The grid join for this `near`, or None if it does not qualify. A relation read with NEW is preferred."""
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
    return GridJoin(
        number=number,
        call=call,
        item=item,
        point=(spans[first], spans[first + 1]),
        other=(spans[second], spans[second + 1]),
        radius=spans[4],
        literal_radius_m=float(radius.this) if isinstance(radius, exp.Literal) and radius.is_number else None,
        radius_marker=str(radius.this) if isinstance(radius, exp.Placeholder) else None,
        select=select,
    )


def _conditions(select: exp.Select) -> Iterator[tuple[exp.Expr, exp.Expr | None]]:
    """Each condition that must hold, with the only relation that may be joined with its cover (None: any of them).

    `a LEFT JOIN b ON near(…)` keeps each row of `a` once, so only `b` may be joined with its cover. In a RIGHT or FULL
    join neither side may.
    """
    where = select.args.get("where")
    if where is not None:
        yield from ((condition, None) for condition in conjuncts(where.this))
    for join in select.args.get("joins") or ():
        on = join.args.get("on")
        if on is None or join.side in ("RIGHT", "FULL") or join.args.get("method"):
            continue
        inner = join.side == "" and join.kind in ("", "INNER", "CROSS")
        only = None if inner else join.this
        yield from ((condition, only) for condition in conjuncts(on))


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(condition, exp.And):
        yield from conjuncts(condition.left)
        yield from conjuncts(condition.right)
    elif isinstance(condition, exp.Paren):
        yield from conjuncts(condition.this)
    else:
        yield condition


def _qualifiers(*expressions: exp.Expr) -> set[str | None]:
    """The relations whose columns the expressions use, in upper case; `:` for parameters, None for unknown ones."""
    used: set[str | None] = set()
    for expression in expressions:
        for node in expression.walk():
            if isinstance(node, exp.Column):
                used.add(node.table.upper() or None)
            elif isinstance(node, exp.Placeholder):
                used.add(":")
            elif isinstance(node, exp.Query):
                used.add(None)
    return used


def _only_item(pair: tuple[exp.Expr, exp.Expr], items: Iterable[FromItem]) -> FromItem | None:
    used = _qualifiers(*pair)
    return next((item for item in items if used == {item.name}), None)


def _items(
    select: exp.Select, references: tuple[TableReference, ...], tokens: tuple[Token, ...]
) -> Iterator[tuple[int, FromItem]]:
    """(id of the syntax node, item) for each relation in the FROM that can be joined with its cover."""
    from_ = select.args.get("from_")
    relations = [] if from_ is None else [(from_.this, True)]
    relations += [(join.this, join.kind not in ("SEMI", "ANTI")) for join in select.args.get("joins") or ()]
    for relation, is_visible in relations:
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
        yield id(relation), FromItem(_name(relation, references), span, is_new, is_visible)


def _name(relation: exp.Expr, references: tuple[TableReference, ...]) -> str:
    """The author's name in upper case: `NEW X` without an alias is `NEW_X` in the tree, but `X` to the author."""
    if isinstance(relation, exp.Table) and not relation.alias:
        start = relation.this.meta["start"]
        return next((table.name for table in references if table.start == start), relation.name).upper()
    return str(relation.alias_or_name).upper()


def _end_with_alias(relation: exp.Expr, end: int) -> int:
    alias = relation.args.get("alias")
    return end if alias is None else int(alias.this.meta["end"]) + 1


def _subquery_span(relation: exp.Subquery, tokens: tuple[Token, ...]) -> Span | None:
    """The text of a subquery, from its opening parenthesis to the end of its alias. Searches backwards."""
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


def direct_join_offsets(
    ast: exp.Query, markers: tuple[Marker, ...], tokens: tuple[Token, ...]
) -> tuple[int, int] | None:
    """The offsets after SELECT and after FROM, where the subscription id and the subscriptions are inserted.

    None if the query is not plain enough for a direct join.
    """
    if not isinstance(ast, exp.Select) or {name for name, value in ast.args.items() if value} - _PLAIN_CLAUSES:
        return None
    if any(token.text == "|>" for token in tokens):
        return None  # a pipe operator may drop the subscription's column
    if not _joins_keep_left_rows(ast) or not calls_are_plain(ast) or _markers_inside_relations(ast):
        return None
    select, from_ = _select_and_from(ast, tokens)
    if select is None or from_ is None or from_ < select:
        return None
    # In `FROM s CROSS JOIN a, b JOIN c ON …` the ON cannot use columns of `s`.
    outermost = _outermost(tokens)
    end = next((index for index in outermost if index > from_ and tokens[index].upper == "WHERE"), len(tokens))
    clause = Span(tokens[from_].start, tokens[end - 1].end)
    commas = any(from_ < index < end and tokens[index].is_symbol(",") for index in outermost)
    if commas and any(clause.holds(marker.start) for marker in markers):
        return None
    return tokens[select].end, tokens[from_].end


def _joins_keep_left_rows(ast: exp.Select) -> bool:
    return all(
        join.side in ("", "LEFT") and not join.args.get("method") and not isinstance(join.this, exp.Lateral)
        for join in ast.args.get("joins") or ()
    )


def calls_are_plain(ast: exp.Select) -> bool:
    """True if no call is an aggregate, a window, or unknown to sqlglot (which may be an aggregate)."""
    for part in ast.expressions:
        for node in _own_nodes(part):
            unknown = isinstance(node, exp.Anonymous) and str(node.this).upper() not in SIGNATURES
            if unknown or isinstance(node, exp.AggFunc | exp.Window):
                return False
    return True


def _own_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    return node.walk(prune=lambda inner: isinstance(inner, exp.Query))


def _markers_inside_relations(ast: exp.Select) -> bool:
    """True if a derived table or a WITH uses a parameter: it cannot refer to the subscriptions beside it."""
    from_ = ast.args.get("from_")
    relations = [] if from_ is None else [from_.this]
    relations += [join.this for join in ast.args.get("joins") or ()]
    with_ = ast.args.get("with_")
    if with_ is not None:
        relations.append(with_)
    return any(relation.find(exp.Placeholder) is not None for relation in relations)


def _select_and_from(ast: exp.Select, tokens: tuple[Token, ...]) -> tuple[int | None, int | None]:
    """The indexes of the tokens SELECT (or its hint, or ALL) and FROM of the outermost query."""
    outermost = _outermost(tokens)
    select = next((index for index in outermost if tokens[index].upper == "SELECT"), None)
    clause = ast.args.get("from_")
    if select is None or clause is None:
        return None, None
    # The last FROM before the first relation: the list of columns may contain `IS DISTINCT FROM`.
    first = min((node.meta["start"] for node in clause.walk() if "start" in node.meta), default=0)
    before = [index for index in outermost if tokens[index].upper == "FROM" and tokens[index].start < first]
    while tokens[select + 1].text.startswith("/*+") or tokens[select + 1].upper == "ALL":
        select += 1
    return select, before[-1] if before else None


def _outermost(tokens: tuple[Token, ...]) -> list[int]:
    """The indexes of the tokens outside all parentheses."""
    indexes, depth = [], 0
    for index, token in enumerate(tokens):
        depth -= token.is_symbol(")")
        if depth == 0:
            indexes.append(index)
        depth += token.is_symbol("(")
    return indexes
