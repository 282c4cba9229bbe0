"""`epulsar-uav --live` and `epulsar-mmog --live`: claims beside the prediction, and the shared scenarios."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tocsin.demo.topic_loops import run_live, start_of_moves
from tocsin.experiments import runner
from tocsin.experiments.epulsar_live import LIVE, SIMULATED, START_S, LiveLoops, rows_of
from tocsin.experiments.runner import Row
from tocsin.model.ids import TopicName
from tocsin.sim.topics import mmog, uav
from tocsin.sim.topics.control import Episode
from tocsin.sim.topics.deliveries import Deliveries
from tocsin.sim.topics.scenario import ClientsMoved, ConsumersChanged, mmog_scenario, uav_scenario
from tocsin.sim.topics.work import MeasuredWork

FACTS: Row = {
    "kind": "live",
    "relay_p99_ms": 0.3,
    "late_p99_ms": 1.0,
    "work_p50_ms": 1.0,
    "work_p99_ms": 3.0,
    "coordinate_error": 0.1,
    "measured_s": 100.0,
    "cpu_measuring": 0.5,
    "cpu_relay": 0.2,
    "cpu_servers": 0.5,
    "gaps": 0,
    "lost": 0,
    "repeated": 0,
    "out_of_order": 0,
}


def episode(late_s: float) -> Episode:
    """A topic with ten messages a second for 100 s, of which those in one span of `late_s` are late."""
    deliveries = Deliveries()
    times = [START_S - 5.0 + 0.1 * number for number in range(1_050)]
    span = (START_S + 30.0, START_S + 30.0 + late_s)
    deliveries.latencies[TopicName("t")] = [
        (at_s, 0.050 if at_s < START_S or span[0] <= at_s < span[1] else 0.020) for at_s in times
    ]
    return Episode([], [], deliveries)


def verdicts(out: Path, live_s: float, simulated_s: float, **facts: Any) -> dict[str, bool | None]:
    rows = [FACTS | {"loop": "tocsin"} | facts]
    rows += rows_of(LIVE, "tocsin", episode(live_s), 40.0, [])
    rows += rows_of(SIMULATED, "tocsin", episode(simulated_s), 40.0, [])
    report = LiveLoops("epulsar-uav", "t", 40.0, "scaled").report(runner.table_of(rows), out)
    assert report.metrics["tocsin.live.share_late"] == pytest.approx(live_s / 100.0, abs=0.002)
    return {claim.id.partition("-as-")[0]: claim.holds for claim in report.claims}


@pytest.mark.parametrize(("live_s", "holds"), [(4.0, True), (5.9, True), (6.2, False), (2.0, False)])
def test_claims_hold_within_a_factor_of_the_prediction(live_s: float, holds: bool, tmp_path: Path) -> None:
    assert verdicts(tmp_path, live_s, 4.0) == {"share-late": holds, "longest-transient": holds, "nothing-lost": True}


@pytest.mark.parametrize("fact", [{"relay_p99_ms": 2.1}, {"late_p99_ms": 6.0}])
def test_invalid_run_is_not_judged(fact: dict[str, float], tmp_path: Path) -> None:
    assert verdicts(tmp_path, 4.0, 4.0, **fact) == {
        "share-late": None,
        "longest-transient": None,
        "nothing-lost": True,
    }


def test_lost_message_is_judged_in_any_run(tmp_path: Path) -> None:
    assert verdicts(tmp_path, 4.0, 4.0, lost=1)["nothing-lost"] is False


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="swarms"):
        run_live("epulsar-uav", 1.0, {"players": "3"}, tmp_path, lambda text: None)


def test_scenario_of_uavs_has_the_zones_of_the_simulation() -> None:
    setting = uav.UavSetting(seed=5, swarms=3, members=3, duration_s=100.0, speed_m_per_s=150.0, followed_per_s=1.0)
    scenario = uav_scenario(setting)
    simulated = [(at_s, f"swarm-{swarm}", f"street-{zone}") for at_s, swarm, zone in uav.run(setting).zone_changes]
    moved = [change for change in scenario.changes if isinstance(change, ClientsMoved)]
    assert [(change.at_s, change.node, change.place) for change in moved] == [
        change for change in simulated if change[0] < setting.duration_s
    ]
    assert scenario.delays_s["street-0", "site-0"] == pytest.approx(0.0105)
    assert scenario.delays_s["street-1", "site-0"] == pytest.approx(0.0255)
    assert scenario.probes["probe-1"] == "broker-1"
    assert (scenario.places["probe-1"], scenario.places["broker-1"]) == ("street-0", "site-0")


def test_prediction_adds_the_measured_work_to_each_delivery() -> None:
    setting = uav.UavSetting(seed=5, swarms=2, members=2, duration_s=20.0, followed_per_s=2.0)
    plain, worked = uav.run(setting).deliveries, uav.run(setting, measured_work=[(0.0, 0.003)]).deliveries
    assert worked.latencies.keys() == plain.latencies.keys()
    for name, latencies in plain.latencies.items():
        assert latencies
        assert [at_s for at_s, _ in worked.latencies[name]] == [at_s for at_s, _ in latencies]
        expected = [latency_s + 0.003 for _, latency_s in latencies]
        assert [latency_s for _, latency_s in worked.latencies[name]] == pytest.approx(expected)


@pytest.mark.parametrize("loop", ["paper", "tocsin"])
def test_prediction_starts_moves_at_the_phase_of_the_live_run(loop: str) -> None:
    setting = uav.UavSetting(
        seed=5, swarms=3, members=3, duration_s=60.0, speed_m_per_s=150.0, followed_per_s=1.0, loop=loop
    )
    moves = uav.run(setting, moves_start_s=18.2).moves
    assert moves
    assert {round(move.at_s % 5.0, 6) for move in moves} == {3.2}


def test_phase_of_the_moves_is_read_from_the_log() -> None:
    began_at = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)

    def line(after_s: float, event: str = "topic moves") -> bytes:
        at = (began_at + timedelta(seconds=after_s)).isoformat().replace("+00:00", "Z")
        return f'{{"topic": "t", "event": "{event}", "timestamp": "{at}"}}\n'.encode()

    of_before, of_others = line(-3.0), line(7.0, "topic moved")
    assert start_of_moves(of_before + of_others, began_at) is None
    found = start_of_moves(of_before + of_others + line(9.9) + line(15.1) + line(104.95), began_at)
    assert found == pytest.approx(4.95)


def test_measured_work_is_of_the_same_time() -> None:
    measured = [(0.1 * number, 0.001 if number < 500 else 0.009) for number in range(1000)]
    work = MeasuredWork(measured, np.random.default_rng(1))
    assert {work(10.0) for _ in range(50)} == {0.001}
    assert {work(90.0) for _ in range(50)} == {0.009}
    assert {work(50.0) for _ in range(50)} == {0.001, 0.009}
    assert {work(0.0) for _ in range(50)} == {0.001} and {work(200.0) for _ in range(50)} == {0.009}


def test_scenario_of_players_ends_with_the_groups_of_the_simulation() -> None:
    setting = mmog.MmogSetting(seed=5, players=12, groups=3, duration_s=60.0, stay_s=(5.0, 10.0), followed_per_s=1.0)
    scenario, regrouping = mmog_scenario(setting), mmog.regroup(setting)
    consumers = {name: set(topic.consumers) for name, topic in scenario.topics.items()}
    for change in scenario.changes:
        assert isinstance(change, ConsumersChanged)
        for name, consumer in change.left:
            consumers[name].remove(consumer)
        for name, consumer in change.joined:
            consumers[name].add(consumer)
    groups = dict(regrouping.at_start) | {player: group for _, player, group in regrouping.changes}
    for player, group in groups.items():
        mates = {other for other, number in groups.items() if number == group and other != player}
        assert consumers[mmog.topic_of(player)] == mates
    assert scenario.occasions_s == mmog.run(setting).regroupings_s
