"""Canonical parameter values and subscription ids."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.model.ids import ChannelName
from tocsin.model.schema import Schema, canonical_type, is_name
from tocsin.model.subscription import BadParameter, canonical_value, canonical_values, subscription_id

CHANNEL = ChannelName("NearMe")
SIGNATURE = Schema.of(user="STRING", radius_m="DOUBLE")


def test_equal_values_in_different_forms_are_one_subscription() -> None:
    integral = canonical_values(SIGNATURE, {"radius_m": 5, "user": "ann"})
    decimal = canonical_values(SIGNATURE, {"user": "ann", "radius_m": 5.0})
    assert not isinstance(integral, BadParameter) and integral == decimal
    assert subscription_id(CHANNEL, integral) == subscription_id(ChannelName("nearme"), integral)


def test_subscription_id_never_changes() -> None:
    """Brokers compute ids themselves: a change would orphan every stored subscription."""
    assert subscription_id(CHANNEL, ("ann", 5.0)) == "42137702cc5950fe3883f7c0e11f2a11"


@pytest.mark.parametrize(
    ("kind", "value", "canonical"),
    [
        ("INT", 5, 5),
        ("INT", 5.0, 5),
        ("DOUBLE", -0.0, 0.0),
        ("DOUBLE", 3, 3.0),
        ("BOOLEAN", True, True),
        ("DECIMAL(10,2)", "1.5", "1.50"),
        ("DECIMAL(10,2)", 1.5, "1.50"),
        ("DECIMAL(10,2)", "-0.00", "0.00"),
        ("DECIMAL(38,10)", "1e27", f"1{'0' * 27}.{'0' * 10}"),
        ("DECIMAL(38,38)", "0.1", f"0.1{'0' * 37}"),
        ("DECIMAL(38,0)", "9" * 38, "9" * 38),
        ("DECIMAL(38,2)", f"-{'9' * 36}.99", f"-{'9' * 36}.99"),
        ("DATE", "2026-11-15", "2026-11-15"),
        ("TIMESTAMP", "2026-11-15T20:00:00+02:00", "2026-11-15T18:00:00.000000Z"),
        ("TIMESTAMP", "2026-11-15 18:00:00", "2026-11-15T18:00:00.000000Z"),
        ("ARRAY<INT>", [1, 2.0], [1, 2]),
    ],
)
def test_value_is_converted_to_its_canonical_form(kind: str, value: Any, canonical: Any) -> None:
    assert canonical_value(kind, value) == canonical
    assert repr(canonical_value(kind, value)) == repr(canonical)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("INT", "5"),
        ("INT", 5.5),
        ("INT", True),
        ("INT", 2**31),
        ("TINYINT", 128),
        ("DOUBLE", "5"),
        ("DOUBLE", math.nan),
        ("DOUBLE", math.inf),
        ("DOUBLE", 10**400),
        ("STRING", 5),
        ("STRING", None),
        ("STRING", "x" * 5000),
        ("STRING", "\ud800"),
        ("BOOLEAN", 1),
        ("DECIMAL(4,2)", "100"),
        ("DECIMAL(4,2)", "1.234"),
        ("DECIMAL(4,2)", "NaN"),
        ("DECIMAL(38,0)", "1e38"),
        ("DECIMAL(38,0)", f"{'9' * 38}.5"),
        ("DECIMAL(38,38)", "1"),
        ("DECIMAL(38,38)", "1e-39"),
        ("DATE", "15.11.2026"),
        ("TIMESTAMP", "yesterday"),
        ("ARRAY<INT>", 1),
        ("ARRAY<INT>", ["1"]),
        ("MAP<INT,INT>", {}),
    ],
)
def test_value_of_the_wrong_type_is_rejected(kind: str, value: Any) -> None:
    with pytest.raises(ValueError):
        canonical_value(kind, value)


@given(st.text(), st.text())
def test_different_values_have_different_ids(first: str, second: str) -> None:
    ids = {subscription_id(CHANNEL, (first,)), subscription_id(CHANNEL, (second,))}
    assert len(ids) == len({first, second})


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_canonical_values_survive_json_and_stay_canonical(value: Any) -> None:
    for kind in (
        "STRING",
        "INT",
        "BIGINT",
        "DOUBLE",
        "BOOLEAN",
        "DECIMAL(38,10)",
        "DATE",
        "TIMESTAMP",
        "ARRAY<STRING>",
    ):
        try:
            canonical = canonical_value(kind, value)
        except ValueError:
            continue
        assert canonical_value(kind, json.loads(json.dumps(canonical))) == canonical


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("long", "BIGINT"),
        ("Decimal( 10 , 2 )", "DECIMAL(10,2)"),
        ("array<string>", "ARRAY<STRING>"),
        ("geometry", None),
        ("DECIMAL(39,0)", None),
        ("DECIMAL(2,3)", None),
        ("ARRAY<>", None),
    ],
)
def test_type_is_converted_to_its_canonical_form(written: str, canonical: str | None) -> None:
    assert canonical_type(written) == canonical


@pytest.mark.parametrize("name", ["", "1a", "_a", "a-b", "a b", "a.b", "a;b", "ä", "a" * 129, "a\n"])
def test_unsafe_name_is_rejected(name: str) -> None:
    assert not is_name(name)
