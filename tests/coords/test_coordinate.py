"""The coordinate value: distance, centroid, proxy, sanity."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.coords.coordinate import DIMENSIONS, Coordinate, behind_proxy, centroid, distance_s, one_way_s
from tocsin.coords.distances import as_arrays, distances_s

seconds = st.floats(-1.0, 1.0)
coordinates = st.builds(
    Coordinate,
    vector=st.tuples(*[seconds] * DIMENSIONS),
    height_s=st.floats(0.0, 0.5),
    adjustment_s=st.just(0.0),
    error=st.floats(0.0, 1.5),
)


def at(x_s: float, y_s: float = 0.0, height_s: float = 0.0, adjustment_s: float = 0.0) -> Coordinate:
    return Coordinate((x_s, y_s, *[0.0] * (DIMENSIONS - 2)), height_s, adjustment_s, 0.1)


def test_distance_includes_both_heights_and_adjustments() -> None:
    assert distance_s(at(0.0, height_s=0.010), at(0.03, 0.04, height_s=0.005, adjustment_s=-0.002)) == pytest.approx(
        0.063
    )
    assert one_way_s(at(0.0), at(0.03, 0.04)) == pytest.approx(0.025)


def test_adjustment_larger_than_the_distance_gives_zero() -> None:
    assert distance_s(at(0.0, adjustment_s=-0.5), at(0.01)) == 0.0


@given(
    st.lists(st.tuples(*[st.floats(-0.001, 0.001)] * 2, st.floats(0.0, 0.001), st.floats(-0.002, 0.002)), min_size=1)
)
def test_matrix_of_distances_equals_single_distances(fields: list[tuple[float, float, float, float]]) -> None:
    """Also within one site, where adjustments exceed distances."""
    nodes = [at(*values) for values in fields]
    matrix = distances_s(*as_arrays(nodes), *as_arrays(nodes))
    single = [[distance_s(node, other) for other in nodes] for node in nodes]
    assert np.allclose(matrix, single, rtol=0.0, atol=1e-12)


def test_centroid_is_mean_of_points_heights_and_adjustments() -> None:
    middle = centroid([at(0.0, 0.0, 0.010, 0.002), at(0.04, 0.02, 0.030, 0.0)])
    assert middle.vector[:2] == pytest.approx((0.02, 0.01))
    assert (middle.height_s, middle.adjustment_s) == pytest.approx((0.020, 0.001))
    with pytest.raises(ValueError, match="at least one"):
        centroid([])


def test_mobile_client_has_coordinate_of_its_gateway_with_larger_height() -> None:
    """[ePulsar §4]: the client–proxy latency is added to the height of the proxy's coordinate."""
    gateway = at(0.02, 0.01, height_s=0.001)
    mobile = behind_proxy(gateway, 0.020)
    assert mobile.vector == gateway.vector
    assert distance_s(mobile, at(0.0)) == pytest.approx(distance_s(gateway, at(0.0)) + 0.020)
    for wrong in (-0.001, math.nan, 11.0):
        with pytest.raises(ValueError, match="access round-trip"):
            behind_proxy(gateway, wrong)


@pytest.mark.parametrize(
    "broken",
    [
        {"vector": (0.0,) * (DIMENSIONS - 1)},
        {"vector": (math.nan, *[0.0] * (DIMENSIONS - 1))},
        {"vector": (math.inf, *[0.0] * (DIMENSIONS - 1))},
        {"vector": (11.0, *[0.0] * (DIMENSIONS - 1))},
        {"height_s": -0.001},
        {"height_s": math.nan},
        {"adjustment_s": -math.inf},
        {"error": -0.1},
        {"error": math.nan},
    ],
)
def test_infinite_misshapen_or_absurd_coordinate_is_not_sane(broken: dict[str, object]) -> None:
    assert at(0.01).is_sane
    assert not replace(at(0.01), **broken).is_sane  # type: ignore[arg-type]


@given(st.lists(coordinates, min_size=1, max_size=6), st.lists(coordinates, min_size=1, max_size=6))
@settings(max_examples=40)
def test_distance_matrix_agrees_with_single_distances(left: list[Coordinate], right: list[Coordinate]) -> None:
    matrix = distances_s(*as_arrays(left), *as_arrays(right))
    singles = np.array([[distance_s(a, b) for b in right] for a in left])
    assert np.allclose(matrix, singles, atol=1e-7)


@given(coordinates, coordinates, coordinates)
@settings(max_examples=40)
def test_distance_is_symmetric_and_keeps_triangle_inequality(a: Coordinate, b: Coordinate, c: Coordinate) -> None:
    assert distance_s(a, b) == pytest.approx(distance_s(b, a))
    assert distance_s(a, c) <= distance_s(a, b) + distance_s(b, c) + 1e-9
