"""Shapes of areas: CAP writes latitude first, Well-Known Text and GeoJSON write longitude first."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.cluster.cap.alert import Area, Circle, Point, Ring
from tocsin.cluster.cap.geojson import ResultGap, collection, feature, geometry_of
from tocsin.cluster.cap.places import bounding_circle, counter_clockwise, rings_of, well_known_text
from tocsin.cluster.sql.geo import distance_m


def box(south: float, west: float, north: float, east: float) -> Ring:
    return ((south, west), (south, east), (north, east), (north, west), (south, west))


HELSINKI = box(60.1, 24.9, 60.2, 25.0)


def test_single_circle_keeps_its_centre_and_radius() -> None:
    circle = bounding_circle(Area("x", circles=(Circle((60.17, 24.95), 0.8),)))
    assert circle is not None and (circle.centre, circle.radius_m) == ((60.17, 24.95), 800.0)


def test_polygon_becomes_a_circle_around_its_centroid() -> None:
    circle = bounding_circle(Area("x", (HELSINKI,)))
    assert circle is not None
    assert circle.centre == pytest.approx((60.15, 24.95)) and 6_000 < circle.radius_m < 6_300


def test_polygon_across_the_180th_meridian_stays_in_one_piece() -> None:
    circle = bounding_circle(
        Area("x", (((-18.0, 179.0), (-18.0, -179.0), (-16.0, -179.0), (-16.0, 179.0), (-18.0, 179.0)),))
    )
    assert circle is not None
    assert circle.centre[0] == pytest.approx(-17) and abs(circle.centre[1]) == pytest.approx(180)
    assert circle.radius_m < 200_000


def test_centre_of_several_shapes_is_weighted_by_their_size() -> None:
    circle = bounding_circle(Area("x", (HELSINKI, box(60.1, 25.0, 60.2, 25.1)), (Circle((60.15, 25.0), 0.0),)))
    assert circle is not None and circle.centre == pytest.approx((60.15, 25.0))


def test_flat_polygon_has_a_centre_and_geocodes_alone_have_none() -> None:
    line: Ring = ((1.0, 1.0), (1.0, 2.0), (1.0, 3.0), (1.0, 1.0))
    circle = bounding_circle(Area("x", (line,)))
    assert circle is not None and circle.centre == pytest.approx((1.0, 2.0))
    assert bounding_circle(Area("x")) is None


points = st.tuples(st.floats(-85, 85), st.floats(-180, 180))


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(points, min_size=3, max_size=6).map(lambda corners: (*corners, corners[0])), min_size=1, max_size=3
    )
)
def test_circle_contains_every_corner_and_text_is_read_back(rings: list[tuple[Point, ...]]) -> None:
    circle = bounding_circle(Area("x", tuple(rings)))
    assert circle is not None and abs(circle.centre[0]) <= 90 and abs(circle.centre[1]) <= 180
    away = [distance_m(*circle.centre, *corner) for ring in rings for corner in ring]
    assert max(metres for metres in away if metres is not None) <= circle.radius_m * (1 + 1e-9)
    assert rings_of(well_known_text(rings)) == tuple(rings)


def test_well_known_text_has_longitude_first() -> None:
    assert well_known_text([HELSINKI]) == "POLYGON ((24.9 60.1, 25.0 60.1, 25.0 60.2, 24.9 60.2, 24.9 60.1))"
    assert well_known_text([]) is None


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        "",
        "POINT (1 2)",
        "POLYGON ((1 2, 3 4))",
        "POLYGON ((1 2, 3 x, 5 6, 1 2))",
        "POLYGON ((1 200, 3 4, 5 6, 1 200))",
        "POLYGON ((1 2, 3 4, 5 6, 1 2), (1 2, 3 4, 5 6, 1 2))",
        "POLYGON ((1 2, 3 4, 5 6, 7 8))",
    ],
)
def test_text_other_than_polygons_has_no_rings(text: object) -> None:
    assert rings_of(text) == ()


def test_geojson_has_longitude_first() -> None:
    assert geometry_of({"lat": 60.17, "lon": 24.95}) == {"type": "Point", "coordinates": [24.95, 60.17]}
    assert geometry_of({"Longitude": 24.95, "Latitude": 60}) == {"type": "Point", "coordinates": [24.95, 60.0]}


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"lat": 60.1},
        {"lat": None, "lon": 1.0},
        {"lat": 91.0, "lon": 0.0},
        {"lat": float("nan"), "lon": 0.0},
        {"lat": "60", "lon": "24"},
        {"lat": True, "lon": False},
    ],
)
def test_result_without_coordinates_has_no_geometry(result: dict[str, Any]) -> None:
    assert geometry_of(result) is None


def test_polygons_have_the_direction_that_the_rfc_requires() -> None:
    for ring in (HELSINKI, HELSINKI[::-1]):
        geometry = geometry_of({"polygon": well_known_text([ring]), "lat": 60.15, "lon": 24.95})
        assert geometry is not None and geometry["type"] == "Polygon"
        assert geometry["coordinates"] == [[[lon, lat] for lat, lon in counter_clockwise(ring)]]
        [outer] = geometry["coordinates"]
        assert sum((x2 - x1) * (y2 + y1) for (x1, y1), (x2, y2) in pairwise(outer)) < 0
    both = geometry_of({"polygon": well_known_text([HELSINKI, HELSINKI])})
    assert both is not None and both["type"] == "MultiPolygon" and len(both["coordinates"]) == 2


def test_collection_is_one_json_document_with_its_gaps_first() -> None:
    features = [feature("s", f"1-{n}", {"lat": 1.0, "lon": 2.0, "n": n}) for n in range(3)]
    whole = json.loads(b"".join(collection([ResultGap("s", "1-0")], [features[:2], features[2:]])))
    assert whole["type"] == "FeatureCollection" and whole["gaps"] == [{"subscription": "s", "cursor": "1-0"}]
    assert [item["properties"]["n"] for item in whole["features"]] == [0, 1, 2]
    assert whole["features"][0]["id"] == "s/1-0"
    assert json.loads(b"".join(collection([], []))) == {"type": "FeatureCollection", "features": []}
