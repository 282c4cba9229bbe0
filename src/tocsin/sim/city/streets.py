"""A city's streets: a graph in metres, read from well-known text or built in, with shortest paths.

Pure: text in, arrays out; the caller reads files. x grows to the east and y to the north, as in the maps of the ONE
simulator (projected coordinates; that program mirrors them for the screen). Degrees are relative to an anchor, the
middle of the map. `street_movers` moves people on the streets.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra

Points = npt.NDArray[np.float64]
"""n × 2: x and y in metres (names end in `_m`), or latitude and longitude in degrees."""
Nodes = npt.NDArray[np.int32]
Line = tuple[tuple[float, float], ...]

HELSINKI: Final = (60.17, 24.94)
"""Latitude and longitude of the middle of a map in metres."""
METRES_PER_DEGREE: Final = 111_195.0
"""Length of a degree of latitude on a sphere of 6,371 km, as in `distance_m`."""
_SAME_M: Final = 0.5
"""Line ends closer than this are one crossing: road files repeat points with rounding."""
_TREES: Final = 4_000
"""Shortest-path trees in the cache; a tree of 1,500 crossings takes 6 KB."""
_LINE: Final = re.compile(r"(MULTI)?LINESTRING\s*(?:Z|M|ZM)?\s*(?:EMPTY|\(([^A-Za-z]*)\))", re.IGNORECASE)
_PART: Final = re.compile(r"\(([^()]*)\)")


class BadMap(ValueError):
    """A road file that cannot be used; the message says why."""


@dataclass(frozen=True, eq=False)
class Streets:
    """The largest connected part of a map. Shortest paths are cached per destination."""

    nodes_m: Points
    lines: tuple[Nodes, ...]
    """Sequences of crossings, as in the source."""
    anchor: tuple[float, float] = HELSINKI
    graph: Any = field(init=False, repr=False)
    """Sparse matrix of segment lengths, each segment once."""
    _trees: OrderedDict[int, array[int]] = field(default_factory=OrderedDict, init=False, repr=False)

    def __post_init__(self) -> None:
        starts = np.concatenate([line[:-1] for line in self.lines])
        ends = np.concatenate([line[1:] for line in self.lines])
        lengths = np.hypot(*(self.nodes_m[starts] - self.nodes_m[ends]).T)
        size = len(self.nodes_m)
        low, high = np.minimum(starts, ends), np.maximum(starts, ends)
        # A file may have a segment twice; a sparse matrix would add the lengths.
        _, first = np.unique(low.astype(np.int64) * size + high, return_index=True)
        graph = csr_matrix((lengths[first], (low[first], high[first])), shape=(size, size))
        object.__setattr__(self, "graph", graph)

    @property
    def edges(self) -> tuple[Nodes, Nodes]:
        """Every segment between two neighbouring crossings, once."""
        segments = self.graph.tocoo()
        return segments.row.astype(np.int32), segments.col.astype(np.int32)

    @property
    def length_m(self) -> float:
        return float(self.graph.sum())

    def path(self, source: int, destination: int) -> list[int]:
        """The crossings of a shortest path after `source`; empty if source and destination are the same."""
        toward = self._tree(destination)
        path = []
        while source != destination:
            source = toward[source]
            path.append(source)
        return path

    def _tree(self, destination: int) -> array[int]:
        """The next crossing towards `destination`, from each crossing."""
        tree = self._trees.get(destination)
        if tree is None:
            _, toward = dijkstra(self.graph, directed=False, indices=destination, return_predecessors=True)
            # Python reads it element by element, which is several times faster from an `array` than from numpy.
            tree = self._trees[destination] = array("i", toward.astype(np.int32).tobytes())
            if len(self._trees) > _TREES:
                self._trees.popitem(last=False)
        else:
            self._trees.move_to_end(destination)
        return tree

    def degrees(self, points_m: Points) -> Points:
        """Latitude and longitude. The error of a flat map is less than a metre in five kilometres."""
        lat, lon = self.anchor
        scale = np.array([METRES_PER_DEGREE * math.cos(math.radians(lat)), METRES_PER_DEGREE])
        points_deg: Points = (points_m / scale)[..., ::-1] + np.array([lat, lon])
        return points_deg

    def geojson(self) -> dict[str, Any]:
        """The streets as one MultiLineString. Longitude is first, as in GeoJSON (RFC 7946 §3.1.1)."""
        points_deg = self.degrees(self.nodes_m).round(6)
        lines = [[[float(lon), float(lat)] for lat, lon in points_deg[line].tolist()] for line in self.lines]
        geometry = {"type": "MultiLineString", "coordinates": lines}
        return {"type": "Feature", "properties": {"name": "streets"}, "geometry": geometry}


def read_wkt(text: str, *, anchor: tuple[float, float] = HELSINKI) -> Streets:
    """Reads LINESTRING and MULTILINESTRING; ignores other geometries. Raises BadMap.

    Coordinates are degrees if all of them could be, otherwise metres.
    """
    lines = list(_wkt_lines(text))
    if not lines:
        raise BadMap("no LINESTRING or MULTILINESTRING; expected one per street, in well-known text")
    points = np.array([point for line in lines for point in line])
    if not np.isfinite(points).all():
        raise BadMap("a coordinate is not a finite number")
    low, high = points.min(axis=0), points.max(axis=0)
    middle = (low + high) / 2
    scale = np.ones(2)
    if np.abs(points[:, 0]).max() <= 180.0 and np.abs(points[:, 1]).max() <= 90.0 and (high - low).max() < 5.0:
        anchor = (float(middle[1]), float(middle[0]))
        scale = np.array([METRES_PER_DEGREE * math.cos(math.radians(anchor[0])), METRES_PER_DEGREE])
    return made_of([(np.array(line) - middle) * scale for line in lines], anchor)


def _wkt_lines(text: str) -> Iterator[Line]:
    for match in _LINE.finditer(text):
        for part in _PART.findall(f"({match[2]})" if match[1] is None else match[2] or ""):
            try:
                line = tuple((float(x), float(y)) for x, y, *_ in (point.split() for point in part.split(",")))
            except ValueError:
                raise BadMap(f"not a list of points: {part[:60]!r}") from None
            if len(line) > 1:
                yield line


def made_of(lines_m: Sequence[Points], anchor: tuple[float, float] = HELSINKI) -> Streets:
    """A graph of these lines: equal points are one crossing, and only the largest connected part is kept."""
    points = np.concatenate(lines_m)
    cells, numbers = np.unique(np.round(points / _SAME_M).astype(np.int64), axis=0, return_inverse=True)
    nodes_m = np.zeros((len(cells), 2))
    nodes_m[numbers.ravel()] = points
    ends = np.cumsum([len(line) for line in lines_m])
    runs = [_without_repeats(run) for run in np.split(numbers.ravel().astype(np.int32), ends[:-1])]
    runs = [run for run in runs if len(run) > 1]
    if not runs:
        raise BadMap("all streets are shorter than a metre; are the coordinates metres?")
    return _largest_part(nodes_m, runs, anchor)


def _without_repeats(run: Nodes) -> Nodes:
    kept: Nodes = run[np.concatenate([[True], run[1:] != run[:-1]])]
    return kept


def _largest_part(nodes_m: Points, runs: Sequence[Nodes], anchor: tuple[float, float]) -> Streets:
    starts, ends = np.concatenate([run[:-1] for run in runs]), np.concatenate([run[1:] for run in runs])
    size = len(nodes_m)
    graph = csr_matrix((np.ones(len(starts)), (starts, ends)), shape=(size, size))
    _, part = connected_components(graph, directed=False)
    largest = int(np.bincount(part).argmax())
    kept = np.flatnonzero(part == largest)
    renumbered = np.full(size, -1, np.int32)
    renumbered[kept] = np.arange(len(kept), dtype=np.int32)
    return Streets(nodes_m[kept], tuple(renumbered[run] for run in runs if part[run[0]] == largest), anchor)


def built_in() -> Streets:
    """A synthetic city of 4.4 × 3.4 km, the extent of the ONE simulator's Helsinki: blocks, two diagonals, a park, a
    bay.

    Always the same city. Streets bend a little, so that distances differ. The park has no streets and the bay cuts off
    a corner, so that paths lead around both.
    """
    columns, rows, step_m = 23, 18, 200.0
    x, y = np.meshgrid(np.arange(columns) * step_m, np.arange(rows) * step_m)
    bend = 60.0 * np.sin(y / 900.0 + x / 1_500.0), 45.0 * np.sin(x / 800.0)
    grid = np.stack([x + bend[0], y + bend[1]], axis=-1) - np.array([(columns - 1), (rows - 1)]) * step_m / 2

    def open_(row: int, column: int) -> bool:
        park = 10 <= row <= 12 and 6 <= column <= 9
        bay = row + 0.9 * (columns - 1 - column) < 6
        return not (park or bay)

    lines = [[(row, column) for column in range(columns)] for row in range(rows)]
    lines += [[(row, column) for row in range(rows)] for column in range(columns)]
    lines += [[(step, step + 2) for step in range(rows)], [(step, 19 - step) for step in range(2, rows)]]
    return made_of([grid[tuple(np.array(run).T)] for line in lines for run in _runs(line, open_)])


def _runs(line: Sequence[tuple[int, int]], open_: Any) -> Iterator[list[tuple[int, int]]]:
    """The parts of a line that are on open ground."""
    run: list[tuple[int, int]] = []
    for place in line:
        if open_(*place):
            run.append(place)
            continue
        if len(run) > 1:
            yield run
        run = []
    if len(run) > 1:
        yield run
