"""The SQL that runs a channel's query: for all subscriptions at once, or for one.

The query was parsed to know what its names mean, but it is not written back from the syntax tree: sqlglot reads
`x::INT` as TRY_CAST and `'a''b'` as a concatenation, and Spark should run what the author wrote. What comes out is the
author's text with markers, dataset names and calls of `near` and `distance_m` replaced in place.

The Spark side drives this when a channel is created and at each execution. Values of parameters are never in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from sqlglot import exp

from tocsin.cluster.sql.geo import ALL_LEVELS, level_of
from tocsin.cluster.sql.geo_calls import GeoCall, Span
from tocsin.cluster.sql.geo_sql import cell_sql, cover_sql, distance_sql, near_sql
from tocsin.cluster.sql.grid_join import Grid
from tocsin.cluster.sql.query_parse import ChannelQuery
from tocsin.cluster.sql.result_columns import SUBSCRIPTION
from tocsin.cluster.sql.text_edits import Edit, apply_edits

SUBSCRIPTIONS_VIEW = "_tocsin_subscriptions"
"""The relation `to_lateral_sql` reads: SUBSCRIPTION and one column per parameter, named as the parameter."""

ViewOf = Callable[[str, bool], str]
"""(dataset as the query writes it, read as NEW?) → the view that holds those records."""

RadiusLevels = Mapping[str, Collection[int]]
"""For a parameter that is the radius of a `near`: the levels (`geo.levels_of`) of the radii in the subscriptions."""


def to_lateral_sql(
    query: ChannelQuery,
    view_of: ViewOf,
    parameters_alias: str = "_tocsin_s",
    radius_levels: RadiusLevels | None = None,
) -> str:
    """One statement for all subscriptions: each row of `_tocsin_subscriptions` with the query's rows for it.

    Its columns are SUBSCRIPTION and then those of the query. A radius beyond the levels given for its parameter finds
    nothing, so `radius_levels` must come from the same subscriptions; for a parameter it does not name all are used.
    """
    writer = _Writer(query, view_of, parameters_alias, radius_levels or {})
    if writer.flat_places is not None:
        return writer.body()
    # The line break ends a comment the author may have left at the end.
    return (
        f"SELECT {parameters_alias}.{SUBSCRIPTION}, _tocsin_q.* "  # noqa: S608  values stay in the table of subscriptions
        f"FROM {writer.subscriptions()}, LATERAL (\n{writer.body()}\n) _tocsin_q"
    )


def to_single_sql(query: ChannelQuery, view_of: ViewOf, *, grid: bool = False) -> str:
    """The query for one subscription, its markers left for `spark.sql(text, args)`.

    Without `grid`, each `near` is the exact condition and nothing else: what the other forms are checked against.
    """
    return _Writer(query, view_of, None, {}, grid=grid).body()


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
        self.flat_places = query.flat_places if outermost and parameters_alias is not None else None
        self._edits: list[Edit] = []  # an exploded point holds columns of its own relation only: there are none in it
        self._edits = [*self._markers(), *self._tables(view_of), *self._covers(), *self._stars(), *self._flat()]

    def body(self) -> str:
        return self._text(Span(0, len(self._query.text)))

    def _text(self, span: Span) -> str:
        """That part of the query, rewritten. Calls are expanded from the outermost inwards."""
        calls: list[GeoCall] = []
        for call in self._query.geo_calls:
            inside = span.start <= call.span.start and call.span.end <= span.end
            if inside and not (calls and call.span.end <= calls[-1].span.end):
                calls.append(call)
        edits = [edit for edit in self._edits if not any(call.span.holds(edit.start) for call in calls)]
        edits += [Edit(call.span.start, call.span.end, self._call(call)) for call in calls]
        return apply_edits(self._query.text, edits, span.start, span.end)

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

    def _markers(self) -> list[Edit]:
        if self._alias is None:
            return []
        spelling = {name.upper(): name for name in self._query.parameters.names}
        return [
            Edit(marker.start, marker.end, f"{self._alias}.`_tocsin_p_{spelling[marker.name.upper()]}`")
            for marker in self._query.marker_places
        ]

    def _tables(self, view_of: ViewOf) -> list[Edit]:
        return [
            Edit(table.start, table.end, view_of(table.dataset, table.is_new) + table.alias_to_add)
            for table in self._query.references
        ]

    def _covers(self) -> list[Edit]:
        """`r` becomes `(r CROSS JOIN LATERAL explode(cover) AS g(cell))`: still `r` to the rest of the query."""
        by_item: dict[Span, list[Grid]] = {}
        for grid in self._grids.values():
            by_item.setdefault(grid.item.span, []).append(grid)
        edits = []
        for span, grids in by_item.items():
            joins = "".join(
                f" CROSS JOIN LATERAL explode({self._cover(grid)}) AS {grid.relation}({grid.column})" for grid in grids
            )
            edits += [Edit(span.start, span.start, "("), Edit(span.end, span.end, f"{joins})")]
        return edits

    def _cover(self, grid: Grid) -> str:
        lat, lon = (self._text(part) for part in grid.point)
        levels, reach = self._levels_of(grid), grid.literal_radius_m
        fits = reach is not None and 0 < reach <= 2.0 ** levels[0]
        return cover_sql(lat, lon, levels, reach if fits else None)

    def _levels_of(self, grid: Grid) -> tuple[int, ...]:
        if grid.literal_radius_m is not None:
            return (level_of(grid.literal_radius_m),)
        if grid.radius_marker is None:
            return ALL_LEVELS
        levels = tuple(sorted(set(self._levels.get(grid.radius_marker.upper(), ALL_LEVELS)))) or ALL_LEVELS
        # Inside LATERAL Spark joins before it knows the radius: one level for all keeps the cell free of it.
        return levels if self.flat_places is not None else levels[-1:]

    def _stars(self) -> list[Edit]:
        """A bare `*` must not show what was joined: `* EXCEPT (…)`."""
        edits = []
        for select in self._query.ast.find_all(exp.Select):
            hidden = [grid.column for grid in self._grids.values() if grid.select is select and grid.item.is_seen]
            if select is self._query.ast and self.flat_places is not None:
                hidden += [SUBSCRIPTION, *(f"`_tocsin_p_{name}`" for name in self._query.parameters.names)]
            if hidden:
                edits += [self._star(star, hidden) for star in _bare_stars(select)]
        return edits

    def _star(self, star: exp.Star, hidden: list[str]) -> Edit:
        after = int(star.meta["end"]) + 1
        if star.args.get("except_"):
            following = [token for token in self._query.tokens if token.start >= after]
            return Edit(following[1].end, following[1].end, f"{', '.join(hidden)}, ")
        return Edit(after, after, f" EXCEPT ({', '.join(hidden)})")

    def _flat(self) -> list[Edit]:
        if self.flat_places is None:
            return []
        after_select, after_from = self.flat_places
        return [
            Edit(after_select, after_select, f" {self._alias}.{SUBSCRIPTION},"),
            Edit(after_from, after_from, f" {self.subscriptions()} CROSS JOIN"),
        ]

    def subscriptions(self) -> str:
        """Their table, with parameters renamed, so that no name the author left unqualified can mean one."""
        columns = [SUBSCRIPTION]
        columns += [f"`{name}` AS `_tocsin_p_{name}`" for name in self._query.parameters.names]
        return f"(SELECT {', '.join(columns)} FROM {SUBSCRIPTIONS_VIEW}) {self._alias}"  # noqa: S608  names were validated


def _bare_stars(select: exp.Select) -> list[exp.Star]:
    """The `*` of this query's own list, in functions too, but for `count(*)` and `r.*`."""
    return [
        node
        for part in select.expressions
        for node in part.walk(prune=lambda inner: isinstance(inner, exp.Query))
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count | exp.Column) and "end" in node.meta
    ]
