"""Finds out which rows and subscriptions an execution may leave out, from a channel's query alone.

A channel's query joins a few NEW records with datasets and subscriptions, which may have a million rows each. Most of
them cannot take part in any result. This module derives, from conditions that every joined row must meet, how to find
those that can (semi-join reduction). Spark then runs the unchanged query over the rows that are left.

A row may be left out only if the result of the query is certainly the same without it:
- A row of a dataset, if its SELECT joins it with a relation of NEW records by an equality or a `near` that holds for no
  NEW record. The condition must be one of those that all have to hold in WHERE, in the ON of an inner join, or in the
  ON of a LEFT or SEMI JOIN whose right side is the dataset. All these conditions are false for NULL, so a row that an
  outer join fills with NULLs instead does not appear either. The query must read the dataset in one place only.
- A subscription, if a column must equal one of its parameters and no row has this value. The condition must be one of
  the outermost SELECT, which must return nothing for no rows: not `count(*)` without GROUP BY.
Equalities count only between values of one type whose equality is that of their bits. In all other cases nothing is
left out. `cluster.narrowing` carries out the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.sql.geo import MAX_LEVEL
from tocsin.cluster.sql.near_join import TableReference, calls_are_plain, conjuncts
from tocsin.model.entities import Dataset
from tocsin.model.schema import Schema

_COMPARED_BY_BITS = {"STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "DATE"}
_DEGREES = {"DOUBLE", "FLOAT"}
_CLAUSES = frozenset(
    {"expressions", "from_", "joins", "where", "with_", "hint"}
    | {"distinct", "order", "limit", "offset", "group", "having"}
)
"""The parts of an outermost SELECT (sqlglot's names) that return nothing for no rows."""
MOST_RADIUS_M = 2.0 ** (MAX_LEVEL - 1)
"""A larger radius is no reason to leave out rows."""


@dataclass(frozen=True, slots=True)
class NearRows:
    """Only rows near a NEW record can take part."""

    columns: tuple[str, str]
    """Latitude and longitude of the dataset."""
    new: str
    """The dataset with the NEW records, as in `ChannelQuery.new_datasets`."""
    new_columns: tuple[str, str]
    radius_m: float | None
    """The radius if it is a number in the query."""
    radius_parameter: str | None
    """Else the parameter that is the radius."""


@dataclass(frozen=True, slots=True)
class EqualRows:
    """Only rows whose columns equal those of a NEW record can take part."""

    columns: tuple[str, ...]
    new: str
    new_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EqualParameters:
    """Only subscriptions whose parameters equal the columns of a row can have results."""

    parameters: tuple[str, ...]
    dataset: str
    """The dataset as in `ChannelQuery.datasets` or `new_datasets`."""
    is_new: bool
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Narrowing:
    rows: Mapping[str, tuple[NearRows | EqualRows, ...]] = field(default_factory=dict)
    """For each dataset that is read in full, as in `ChannelQuery.datasets`: conditions that all hold for its rows."""
    subscriptions: tuple[EqualParameters, ...] = ()
    """Conditions that all hold for the subscriptions."""


@dataclass(frozen=True, slots=True)
class _Relation:
    reference: TableReference
    dataset: str
    """The name as in `ChannelQuery.datasets` or `new_datasets`."""
    schema: Schema
    node: exp.Table

    def type_of(self, column: str) -> str | None:
        return next((own.type for own in self.schema.columns if own.name.upper() == column.upper()), None)

    def spelled(self, column: str) -> str:
        return next(name for name in self.schema.names if name.upper() == column.upper())


@dataclass(frozen=True, slots=True)
class _Condition:
    node: exp.Expr
    only: exp.Expr | None
    """The only relation whose rows the condition may leave out; None: any."""
    ends_row: bool
    """True if a row for which the condition does not hold appears in no result of the SELECT."""


def find_narrowing(query: ChannelQuery, datasets: Mapping[str, Dataset]) -> Narrowing:
    """The conditions by which an execution may leave out rows. `datasets` are by lower-case name."""
    if any(token.text == "|>" for token in query.tokens):
        return Narrowing()
    rows: dict[str, list[NearRows | EqualRows]] = {}
    subscriptions: list[EqualParameters] = []
    for select in query.ast.find_all(exp.Select):
        if any(select.find_all(exp.Pivot)):
            continue
        block = _Block(query, select, _relations(query, select, datasets))
        for name, steps in block.row_steps():
            rows.setdefault(name, []).extend(steps)
        if select is query.ast and _is_empty_without_rows(select):
            subscriptions = list(block.subscription_steps())
    return Narrowing({name: tuple(steps) for name, steps in rows.items()}, tuple(subscriptions))


def _relations(query: ChannelQuery, select: exp.Select, datasets: Mapping[str, Dataset]) -> dict[str, _Relation]:
    """The datasets in this FROM by the upper-case name that qualifies their columns."""
    from_ = select.args.get("from_")
    nodes = [] if from_ is None else [from_.this]
    nodes += [join.this for join in select.args.get("joins") or ()]
    by_start = {reference.start: reference for reference in query.references}
    spelling = {(name.upper(), is_new): name for is_new in (False, True) for name in _names(query, is_new)}
    relations: dict[str, _Relation] = {}
    for node in nodes:
        if not isinstance(node, exp.Table) or {name for name, value in node.args.items() if value} - {"this", "alias"}:
            continue
        reference = by_start.get(int(node.this.meta.get("start", -1)))
        alias = node.args.get("alias")
        if reference is None or (alias is not None and alias.args.get("columns")):
            continue
        dataset = datasets[reference.dataset.lower()]
        name = spelling[reference.dataset.upper(), reference.is_new]
        relations[reference.name.upper()] = _Relation(reference, name, dataset.schema, node)
    return relations


def _names(query: ChannelQuery, is_new: bool) -> frozenset[str]:
    return query.new_datasets if is_new else query.datasets


class _Block:
    """One SELECT with its own FROM."""

    def __init__(self, query: ChannelQuery, select: exp.Select, relations: Mapping[str, _Relation]) -> None:
        self._query = query
        self._select = select
        self._relations = relations
        from_ = select.args.get("from_")
        self._is_alone = from_ is not None and not select.args.get("joins") and not select.args.get("laterals")
        """True if FROM has one relation, so that its columns need no qualifier."""

    def row_steps(self) -> Iterator[tuple[str, list[NearRows | EqualRows]]]:
        """(dataset, conditions) for the datasets of this SELECT that the query reads in full, in this place only."""
        for relation in self._relations.values():
            places = [
                table
                for table in self._query.references
                if not table.is_new and table.dataset.upper() == relation.dataset.upper()
            ]
            if relation.reference.is_new or len(places) != 1:
                continue
            steps: list[NearRows | EqualRows] = []
            equal: dict[str, list[tuple[str, str]]] = {}
            for condition in self._conditions():
                if condition.only is not None and condition.only is not relation.node:
                    continue
                if (near := self._near(condition.node, relation)) is not None:
                    steps.append(near)
                elif (pair := self._equal(condition.node, relation)) is not None:
                    other, column, other_column = pair
                    equal.setdefault(other, []).append((column, other_column))
            for other, pairs in equal.items():
                columns, new_columns = zip(*pairs, strict=True)
                steps.append(EqualRows(columns, self._relations[other].dataset, new_columns))
            if steps:
                yield relation.dataset, steps

    def subscription_steps(self) -> Iterator[EqualParameters]:
        pairs: dict[str, list[tuple[str, str]]] = {}
        for condition in self._conditions():
            if condition.ends_row and (found := self._parameter(condition.node)) is not None:
                name, parameter, column = found
                pairs.setdefault(name, []).append((parameter, column))
        for name, own in pairs.items():
            relation = self._relations[name]
            parameters, columns = zip(*own, strict=True)
            yield EqualParameters(parameters, relation.dataset, relation.reference.is_new, columns)

    def _conditions(self) -> Iterator[_Condition]:
        where = self._select.args.get("where")
        if where is not None:
            yield from (_Condition(node, None, ends_row=True) for node in conjuncts(where.this))
        joins = self._select.args.get("joins") or ()
        keeps_left = all(join.side in ("", "LEFT") for join in joins)
        for join in joins:
            on = join.args.get("on")
            if on is None or join.side in ("RIGHT", "FULL") or join.kind == "ANTI" or join.args.get("method"):
                continue
            inner = join.side == "" and join.kind in ("", "INNER", "CROSS")
            for node in conjuncts(on):
                yield _Condition(node, None if inner else join.this, ends_row=inner and keeps_left)

    def _near(self, node: exp.Expr, relation: _Relation) -> NearRows | None:
        if not isinstance(node, exp.Anonymous) or str(node.this).upper() != "NEAR" or len(node.expressions) != 5:
            return None
        columns = [self._column(argument) for argument in node.expressions[:4]]
        radius = node.expressions[4]
        for own, other in ((columns[:2], columns[2:]), (columns[2:], columns[:2])):
            if None in own or None in other:
                continue
            (own_name, lat), (own_again, lon) = own  # type: ignore[misc]
            (new_name, new_lat), (new_again, new_lon) = other  # type: ignore[misc]
            new = self._relations[new_name]
            if self._relations[own_name] is not relation or own_name != own_again or new_name != new_again:
                continue
            types = {relation.type_of(lat), relation.type_of(lon), new.type_of(new_lat), new.type_of(new_lon)}
            if not new.reference.is_new or not types <= _DEGREES:
                continue
            radius_m, parameter = self._radius(radius)
            if radius_m is None and parameter is None:
                continue
            spelled = relation.spelled(lat), relation.spelled(lon)
            return NearRows(spelled, new.dataset, (new.spelled(new_lat), new.spelled(new_lon)), radius_m, parameter)
        return None

    def _radius(self, node: exp.Expr) -> tuple[float | None, str | None]:
        if isinstance(node, exp.Literal) and node.is_number:
            radius_m = float(node.this)
            return (radius_m, None) if radius_m <= MOST_RADIUS_M else (None, None)
        if isinstance(node, exp.Placeholder):
            used = {grid.radius_marker.upper() for grid in self._query.grids if grid.radius_marker is not None}
            name = self._parameter_name(node)
            return None, name if name is not None and name.upper() in used else None
        return None, None

    def _equal(self, node: exp.Expr, relation: _Relation) -> tuple[str, str, str] | None:
        """(name of the NEW relation, column of `relation`, column of the NEW relation) of an equality of both."""
        if not isinstance(node, exp.EQ):
            return None
        left, right = self._column(node.left), self._column(node.right)
        for own, other in ((left, right), (right, left)):
            if own is None or other is None or self._relations[own[0]] is not relation:
                continue
            new = self._relations[other[0]]
            kind = relation.type_of(own[1])
            if new.reference.is_new and kind in _COMPARED_BY_BITS and kind == new.type_of(other[1]):
                return other[0], relation.spelled(own[1]), new.spelled(other[1])
        return None

    def _parameter(self, node: exp.Expr) -> tuple[str, str, str] | None:
        """(name of the relation, parameter, column) of an equality of a parameter and a column."""
        if not isinstance(node, exp.EQ):
            return None
        for marker, other in ((node.left, node.right), (node.right, node.left)):
            parameter, column = self._parameter_name(_bare(marker)), self._column(other)
            if parameter is None or column is None:
                continue
            relation = self._relations[column[0]]
            kind = relation.type_of(column[1])
            if kind in _COMPARED_BY_BITS and kind == self._query.parameters.type_of(parameter):
                return column[0], parameter, relation.spelled(column[1])
        return None

    def _parameter_name(self, node: exp.Expr) -> str | None:
        if not isinstance(node, exp.Placeholder):
            return None
        return next((name for name in self._query.parameters.names if name.upper() == str(node.this).upper()), None)

    def _column(self, node: exp.Expr) -> tuple[str, str] | None:
        """(name of the relation in upper case, column) if the expression is a column of a dataset in this FROM."""
        node = _bare(node)
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier) or node.args.get("db"):
            return None
        name = node.table.upper()
        if not name and self._is_alone and len(self._relations) == 1:
            name = next(iter(self._relations))
        relation = self._relations.get(name)
        if relation is None or relation.type_of(node.name) is None:
            return None
        return name, node.name


def _bare(node: exp.Expr) -> exp.Expr:
    """The expression without parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _is_empty_without_rows(select: exp.Select) -> bool:
    """True if the SELECT returns nothing when no row meets its conditions."""
    if {name for name, value in select.args.items() if value} - _CLAUSES:
        return False
    group = select.args.get("group")
    if group is None:
        order = select.args.get("order")
        ordered_by_aggregate = order is not None and order.find(exp.AggFunc, exp.Anonymous) is not None
        return calls_are_plain(select) and select.args.get("having") is None and not ordered_by_aggregate
    if {name for name, value in group.args.items() if value} != {"expressions"}:
        return False  # ROLLUP, CUBE, GROUPING SETS and ALL have groups without columns
    return all(isinstance(expression, exp.Column | exp.Literal) for expression in group.expressions)
