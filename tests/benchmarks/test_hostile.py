"""`tocsin bench hostile` on a small, quick network: attackers cost the servers little memory and no deliveries."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.benchmarks import hostile

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_attackers_cost_no_delivery_and_little_memory() -> None:
    measured = asyncio.run(hostile.measure(subscribers=5, warm_up_s=4.0, phase_s=6.0, pairs=1))
    assert (measured["lost"], measured["repeated"]) == (0, 0)
    assert measured["correct"], measured["attacks"]
    assert measured["most_gained_mib"] <= 64, measured["gained_mib"]
