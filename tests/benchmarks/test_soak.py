"""The growth that `tocsin bench soak` reports, and the phases of its day."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.benchmarks.soak import SHARE, growths
from tocsin.demo.settings import DemoSettings
from tocsin.sim.city.interactions import LAST_S


def test_growth_is_late_over_early_for_each_process() -> None:
    assert growths({"spark": 1.0, "broker-1": 0.02}, {"spark": 1.5, "broker-1": 0.01}) == {
        "spark": 1.5,
        "broker-1": 0.5,
    }
    assert growths({"spark": None, "broker-1": 0.0}, {"spark": 1.5, "broker-1": 0.01}) == {}


@pytest.mark.parametrize(("minutes", "speed"), [(60.0, 4.0), (3.0, 10.0)])
def test_people_have_settled_before_the_first_window_starts(minutes: float, speed: float) -> None:
    settings = DemoSettings(Path("app.sql"), Path("out"), minutes=minutes, speed=speed, changing_share=SHARE)
    assert settings.pace * LAST_S <= SHARE * settings.day_s
