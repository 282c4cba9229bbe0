"""The live testbed's rows, from an outcome made by hand, and its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.demo.account import Audit, DemoAccount
from tocsin.demo.person import PeopleCounts
from tocsin.demo.run import DemoOutcome
from tocsin.demo.samples import BalancingRound, BrokerSample, DemoSample, Samples
from tocsin.demo.settings import DemoSettings
from tocsin.demo.testbed import SCHEMES, rows_of, run_live, window_s


def outcome(speed: float = 10.0) -> DemoOutcome:
    """A minute of two brokers: broker a moves 300 bytes/s, then 100 from 30 s on; broker b always 100."""
    settings = DemoSettings(Path("app.sql"), Path("out"), minutes=1.0, speed=speed)
    samples = Samples([_sample(float(at)) for at in range(61)], [BalancingRound(25.0, "ldm", 3, 0.5, 0.02, 101.0, "")])
    audit = Audit(expected=9, received=8, lost=1)
    return DemoOutcome(
        settings, DemoAccount(granted=4), samples, audit, None, None, 5, PeopleCounts(logouts=2), [],
        {10.0: 5.0, 30.0: 7.0}, 60.0, 20.0, 3, [],
    )  # fmt: skip


def _sample(at_s: float) -> DemoSample:
    moved = {"a": int(300 * min(at_s, 30.0) + 100 * max(0.0, at_s - 30.0)), "b": int(100 * at_s)}
    migrations = 3 if at_s >= 28 else 0
    brokers = {name: BrokerSample(110.0, count, 0, at_s, migrations, 0) for name, count in moved.items()}
    return DemoSample(at_s, dict.fromkeys(moved, 0.0), {"a": 4, "b": 2}, 9.9, 0.0, migrations, brokers)


def test_run_has_measured_loads_of_the_second_half_beside_the_promise() -> None:
    run = rows_of(outcome(), {"placement": "NR"})[0]
    assert (run["kind"], run["placement"]) == ("run", "NR")
    assert run["cov"] == pytest.approx(0.0) and run["maximum"] == pytest.approx(100.0), "from 40 s on"
    assert (run["promised_cov"], run["promised_maximum"]) == (0.02, 101.0)
    assert (run["migrations"], run["first_plan_moves"], run["migrations_later"]) == (3, 3, 0)
    assert (run["lost"], run["not_granted"], run["errors"]) == (1, 1, 0)


def test_window_is_the_averaging_window_or_two_of_the_longest_periods() -> None:
    assert window_s(outcome(speed=10.0)) == 14.0, "two periods of 7 s"
    assert window_s(outcome(speed=1.0)) == 60.0


def test_curves_and_windows_are_measured_over_one_window() -> None:
    rows = rows_of(outcome(), {})
    first = next(row for row in rows if row["kind"] == "broker" and row["at_s"] == 200.0)
    assert (first["broker"], first["load"]) == (0, 300.0), "20 s of real time are 200 s of the city's"
    windows = [row for row in rows if row["kind"] == "window" and row["broker"] == 0]
    assert [row["at_s"] for row in windows] == [10.0 * at for at in range(20, 47)], "until 46 + 14 s"
    assert all(row["modelled"] == row["forecast"] == 110.0 for row in windows)
    assert windows[0]["measured"] == pytest.approx((10 * 300 + 4 * 100) / 14)
    assert [row["at_s"] for row in windows if row["migrations"]] == [10.0 * at for at in range(20, 28)]
    assert [row["at_s"] for row in windows if row["follows_migration"]] == [10.0 * at for at in range(28, 42)]


@pytest.mark.parametrize("options", [{"brokers": "3"}, {"schemes": "LDM,fair"}, {"placements": "XX"}, {"speed": "0.5"}])
def test_unknown_options_are_refused_before_a_process_starts(options: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected|has the options"):
        run_live(1.0, options, tmp_path, lambda _: None)


def test_every_scheme_is_one_that_the_coordinator_accepts() -> None:
    for _, balance in SCHEMES.values():
        DemoSettings(Path("app.sql"), Path("out"), balance=balance).check()
