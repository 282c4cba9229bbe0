"""`bench matching`: a short factorial run with a real broker, and what is computed from its cells."""

from __future__ import annotations

import asyncio

import pytest

from tocsin.benchmarks.matching import Cell, effects, measure, row_of, suggested


def test_short_run_measures_every_cell_and_suggests_settings() -> None:
    figures = asyncio.run(measure([[200], [1, 3], [2], [100, 0]], seconds=0.2, rounds=1, share=0.5))
    assert figures["correct"] and len(figures["rows"]) == 4
    assert all(row["messages_per_cpu_s"] > 0.0 for row in figures["rows"])
    assert set(figures["effects"]) == {"topics", "rate_per_s"}
    assert all(value > 0 for value in figures["suggested"].values())


def test_effect_of_a_factor_is_its_high_level_over_its_low_one() -> None:
    costs = {(200, 0): 4_000.0, (1_000, 0): 2_000.0, (200, 100): 1_000.0, (1_000, 100): 500.0}
    rows = [row_of(Cell(size, 1, 1, rate), value) for (size, rate), value in costs.items()]
    assert effects(rows) == pytest.approx({"payload_bytes": 0.5, "rate_per_s": 4.0})


def test_suggested_settings_are_the_lowest_of_their_cells() -> None:
    values = {(200, 1): 5_050.0, (1_000, 1): 4_000.0, (200, 10): 1_000.0, (1_000, 10): 900.0}
    rows = [row_of(Cell(size, 1, subscribers, 0), value) for (size, subscribers), value in values.items()]
    rows.append(row_of(Cell(200, 1, 1, 100), 10.0))  # a broker that is nearly idle does not count
    assert suggested(rows, 1.0) == {
        "topic_in_bytes_per_s": 4_000_000,
        "topic_out_bytes_per_s": 2_000_000,
        "topic_matched_per_s": 4_000,
    }
    assert suggested(rows, 0.777)["topic_matched_per_s"] == 3_100
