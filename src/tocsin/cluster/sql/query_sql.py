"""Writes the SQL that runs a channel's query: for all subscriptions at once, or for one.

The result is the author's text with markers, dataset names and calls of `near` and `distance_m` replaced in place. It
is not generated from the syntax tree, because Spark must run what the author wrote: sqlglot reads `x::INT` as TRY_CAST
and `'a''b'` as a concatenation. Values of parameters are never in the text.

`cluster.spark` calls this when a channel is created and at each execution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from sqlglot import exp

from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.sql.geo import ALL_LEVELS, cell_sql, cover_sql, distance_sql, level_of, near_sql
from tocsin.cluster.sql.near_join import GeoCall, GridJoin
from tocsin.cluster.sql.result_columns import SUBSCRIPTION
from tocsin.cluster.sql.tokens import Span

SUBSCRIPTIONS_VIEW = "_tocsin_subscriptions"
"""The relation `to_lateral_sql` reads: SUBSCRIPTION and one column per parameter, named as the parameter."""

ViewOf = Callable[[str, bool], str]
"""(dataset as written in the query, read with NEW?) → the view with those records."""

RadiusLevels = Mapping[str, Collection[int]]
"""Parameter that is the radius of a `near` → the grid levels (`geo.levels_of`) of its values in the subscriptions."""


def to_lateral_sql(
    query: ChannelQuery,
    view_of: ViewOf,
    parameters_alias: str = "_tocsin_s",
    radius_levels: RadiusLevels | None = None,
) -> str:
    """One statement for all subscriptions: joins each row of `_tocsin_subscriptions` with the query's rows for it.

    The columns are SUBSCRIPTION, then those of the query. A radius outside the levels of its parameter matches nothing,
    so `radius_levels` must come from the same subscriptions. A parameter without levels uses all of them.
    """
    writer = _Writer(query, view_of, parameters_alias, radius_levels or {})
    if writer.direct_join is not None:
        return writer.body()
    return (
        f"SELECT {parameters_alias}.{SUBSCRIPTION}, _tocsin_q.* "  # noqa: S608  values stay in the table of subscriptions
        f"FROM {writer.subscriptions_sql()}, LATERAL (\n{writer.body()}\n) _tocsin_q"
    )


def to_single_sql(query: ChannelQuery, view_of: ViewOf, *, grid: bool = False) -> str:
    """The query for one subscription. It keeps its markers, for `spark.sql(text, args)`.

    Without `grid` each `near` is only the exact condition: the reference that tests compare the other forms with.
    """
    return _Writer(query, view_of, None, {}, grid=grid).body()


class _Edit(NamedTuple):
    """Replaces characters `start` to `end` (exclusive) of the query by a text; inserts it if both are equal."""

    start: int
    end: int
    text: str


class _Writer:
    def __init__(
        self,
        query: ChannelQuery,
        view_of: ViewOf,
        parameters_alias: str | None,
        radius_levels: RadiusLevels,
        *,
        grid: bool = True,
    ) -> None:
        self._query = query
        self._alias = parameters_alias
        self._levels = {name.upper(): tuple(levels) for name, levels in radius_levels.items()}
        self._grids = {grid.call.span: grid for grid in query.grids} if grid else {}
        outermost = any(grid.select is query.ast for grid in self._grids.values())
        self.direct_join = query.direct_join_offsets if outermost and parameters_alias is not None else None
        # Empty while `_cover_edits` rewrites the points of covers: those hold only columns of their own relation.
        self._edits: list[_Edit] = []
        self._edits = [
            *self._marker_edits(),
            *self._table_edits(view_of),
            *self._cover_edits(),
            *self._star_edits(),
            *self._direct_join_edits(),
        ]

    def body(self) -> str:
        return self._text(Span(0, len(self._query.text)))

    def _text(self, span: Span) -> str:
        """Rewrite a part of the query. Outer calls are expanded before the calls inside them."""
        calls: list[GeoCall] = []
        for call in self._query.geo_calls:
            inside = span.start <= call.span.start and call.span.end <= span.end
            if inside and not (calls and call.span.end <= calls[-1].span.end):
                calls.append(call)
        edits = [edit for edit in self._edits if not any(call.span.holds(edit.start) for call in calls)]
        edits += [_Edit(call.span.start, call.span.end, self._call(call)) for call in calls]
        return _apply_edits(self._query.text, edits, span)

    def _call(self, call: GeoCall) -> str:
        arguments = [self._text(argument) for argument in call.arguments]
        if call.name == "DISTANCE_M":
            return f"({distance_sql(*arguments)})"
        exact = near_sql(*arguments)
        grid = self._grids.get(call.span)
        if grid is None:
            return exact
        lat, lon, radius = (self._text(part) for part in (*grid.other, grid.radius))
        cell = cell_sql(lat, lon, self._levels_of(grid), radius)
        return f"({grid.relation}.{grid.column} = {cell} AND {exact})"

    def _marker_edits(self) -> list[_Edit]:
        if self._alias is None:
            return []
        spelling = {name.upper(): name for name in self._query.parameters.names}
        return [
            _Edit(marker.start, marker.end, f"{self._alias}.`_tocsin_p_{spelling[marker.name.upper()]}`")
            for marker in self._query.marker_places
        ]

    def _table_edits(self, view_of: ViewOf) -> list[_Edit]:
        edits = []
        for table in self._query.references:
            # Blanks keep the view's name apart: in `FROM`Reports`r` the quotes did.
            before = " " if _in_word(self._query.text[table.start - 1 : table.start]) else ""
            after = " " if _in_word(self._query.text[table.end : table.end + 1]) else ""
            view = view_of(table.dataset, table.is_new)
            edits.append(_Edit(table.start, table.end, f"{before}{view}{table.alias_to_add}{after}"))
        return edits

    def _cover_edits(self) -> list[_Edit]:
        """`r` becomes `(r CROSS JOIN LATERAL explode(cover) AS g(cell))`. The rest of the query still calls it `r`."""
        by_item: dict[Span, list[GridJoin]] = {}
        for grid in self._grids.values():
            by_item.setdefault(grid.item.span, []).append(grid)
        edits = []
        for span, grids in by_item.items():
            joins = "".join(
                f" CROSS JOIN LATERAL explode({self._cover(grid)}) AS {grid.relation}({grid.column})" for grid in grids
            )
            edits += [_Edit(span.start, span.start, "("), _Edit(span.end, span.end, f"{joins})")]
        return edits

    def _cover(self, grid: GridJoin) -> str:
        lat, lon = (self._text(part) for part in grid.point)
        levels, reach = self._levels_of(grid), grid.literal_radius_m
        fits = reach is not None and 0 < reach <= 2.0 ** levels[0]
        return cover_sql(lat, lon, levels, reach if fits else None)

    def _levels_of(self, grid: GridJoin) -> tuple[int, ...]:
        if grid.literal_radius_m is not None:
            return (level_of(grid.literal_radius_m),)
        if grid.radius_marker is None:
            return ALL_LEVELS
        levels = tuple(sorted(set(self._levels.get(grid.radius_marker.upper(), ALL_LEVELS)))) or ALL_LEVELS
        # Inside LATERAL, Spark joins before it knows the radius. With one level the cell does not depend on the radius.
        return levels if self.direct_join is not None else levels[-1:]

    def _star_edits(self) -> list[_Edit]:
        """Hide the added columns from each bare `*`: `* EXCEPT (…)`."""
        edits = []
        for select in self._query.ast.find_all(exp.Select):
            hidden = [grid.column for grid in self._grids.values() if grid.select is select and grid.item.is_visible]
            if select is self._query.ast and self.direct_join is not None:
                hidden += [SUBSCRIPTION, *(f"`_tocsin_p_{name}`" for name in self._query.parameters.names)]
            if hidden:
                edits += [self._star(star, hidden) for star in _bare_stars(select)]
        return edits

    def _star(self, star: exp.Star, hidden: list[str]) -> _Edit:
        after = int(star.meta["end"]) + 1
        if star.args.get("except_"):
            following = [token for token in self._query.tokens if token.start >= after]
            return _Edit(following[1].end, following[1].end, f"{', '.join(hidden)}, ")
        return _Edit(after, after, f" EXCEPT ({', '.join(hidden)})")

    def _direct_join_edits(self) -> list[_Edit]:
        """For a direct join: the subscription id first in the list of columns, and the subscriptions first in FROM."""
        if self.direct_join is None:
            return []
        after_select, after_from = self.direct_join
        return [
            _Edit(after_select, after_select, f" {self._alias}.{SUBSCRIPTION},"),
            _Edit(after_from, after_from, f" {self.subscriptions_sql()} CROSS JOIN"),
        ]

    def subscriptions_sql(self) -> str:
        """The table of subscriptions. Its parameters are renamed: no unqualified name in the query can mean one."""
        columns = [SUBSCRIPTION]
        columns += [f"`{name}` AS `_tocsin_p_{name}`" for name in self._query.parameters.names]
        return f"(SELECT {', '.join(columns)} FROM {SUBSCRIPTIONS_VIEW}) {self._alias}"  # noqa: S608  names were validated


def _in_word(character: str) -> bool:
    return character == "_" or character.isalnum()


def _bare_stars(select: exp.Select) -> list[exp.Star]:
    """Each `*` in this query's own list of columns, functions included, except `count(*)` and `r.*`."""
    return [
        node
        for part in select.expressions
        for node in part.walk(prune=lambda inner: isinstance(inner, exp.Query))
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count | exp.Column) and "end" in node.meta
    ]


def _apply_edits(text: str, edits: Iterable[_Edit], span: Span) -> str:
    """The characters of `span` with the edits that lie inside it. Edits may not overlap."""
    parts, done = [], span.start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < span.start or edit.end > span.end:
            continue
        if edit.start < done:
            raise ValueError(f"edits overlap at {edit.start}: {edit.text!r}")
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done : span.end]])
