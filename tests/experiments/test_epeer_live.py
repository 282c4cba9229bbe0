"""The report of the live site: claims about the scenarios that were run, and a figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.client import Topics
from tocsin.demo.site_ring import RingReader
from tocsin.demo.site_scenarios import _pause_s, run_live
from tocsin.demo.site_world import DisobedientTopics, Publisher, Receiver, SiteLoad, SiteWorld
from tocsin.experiments.epeer_live import LiveSite
from tocsin.experiments.runner import Row, table_of

BURST: Row = {"lost": 0.0, "repeated": 0.0, "gaps": 0.0, "overload_seen_s": 1.8, "relieved_s": 6.0, "tight_p99_s": 0.4}
BURST |= {"highest_used_at_end": 0.9, "moved": 16.0, "moved_late": 0.0, "longest_pause_ms": 90.0, "cores": 0.6}
BURST |= {"unrelieved_looks": 0.0}
DAMAGE: Row = {"lost": 3.0, "repeated": 0.0, "gaps": 1.0, "grew_until_s": 2.0, "used_p05": 0.82, "used_p95": 0.94}
DAMAGE |= {"utility_per_byte_ratio": 1.7, "limits_lifted_s": float("nan"), "protected_per_s": 5.0, "cores": 0.5}
LOOK: Row = {
    "kind": "look",
    "at_s": 1.0,
    "edge": "broker-2",
    "used": 0.6,
    "sent": 0.5,
    "waiting_s": 0.0,
    "state": "LOW",
}


def report(tmp_path: Path, runs: dict[str, Row]) -> dict[str, bool | None]:
    rows: list[Row] = [LOOK | {"scenario": scenario} for scenario in runs]
    rows += [{"kind": "run", "scenario": scenario, **facts} for scenario, facts in runs.items()]
    made = LiveSite().report(table_of(rows), tmp_path)
    assert all(Path(path).stat().st_size for path in made.files)
    return {claim.id: claim.holds for claim in made.claims}


def test_late_relief_fails_its_claim_alone(tmp_path: Path) -> None:
    held = report(tmp_path, {"burst": BURST})
    assert held.pop("relieved") is False
    assert set(held.values()) == {True} and "delay-without" not in held


def test_lost_message_of_a_burst_fails_its_claim(tmp_path: Path) -> None:
    assert report(tmp_path, {"burst": BURST | {"lost": 1.0}})["nothing-lost"] is False


def test_limits_that_never_end_fail_their_claim(tmp_path: Path) -> None:
    held = report(tmp_path, {"matching": DAMAGE, "burst-without": BURST | {"tight_p99_s": 7.0}})
    assert held["limits-lifted-matching"] is False and held["delay-without"] is True
    assert held["utility-per-byte-matching"] is True and "overload-seen" not in held


@pytest.mark.parametrize(("fact", "claim"), [("overload_seen_s", "overload-seen"), ("relieved_s", "relieved")])
def test_burst_that_is_never_seen_or_relieved_fails_its_claim(tmp_path: Path, fact: str, claim: str) -> None:
    assert report(tmp_path, {"burst": BURST | {fact: float("nan")}})[claim] is False


def test_edge_that_is_overloaded_again_fails_its_claim_alone(tmp_path: Path) -> None:
    held = report(tmp_path, {"burst": BURST | {"relieved_s": 4.0, "unrelieved_looks": 1.0}})
    assert [claim for claim, holds in held.items() if not holds] == ["stays-relieved"]


def test_receiver_that_gets_nothing_more_after_its_move_is_seen() -> None:
    world = SiteWorld(SiteLoad(receivers=1), None, None)  # type: ignore[arg-type]
    client = Topics("http://nowhere")
    world.publishers = [Publisher("t", 0, 10.0, 0.5, client, sent=5), Publisher("u", 0, 10.0, 0.5, client, sent=5)]
    stuck, well, deaf = (Receiver(topic, client) for topic in "tut")
    world.receivers = [stuck, well, deaf]
    for number in range(1, 6):
        well._receive(b"0 %d 1.0 0.5 x" % number, float(number))
        if number < 3:
            stuck._receive(b"0 %d 1.0 0.5 x" % number, float(number))
    assert world.wrong()["lost"] == 0, "while messages are published, the last ones may be in flight"
    world.is_publishing = False
    assert world.wrong()["lost"] == 3 + 5
    assert _pause_s(stuck, moved_s=2.0, now_s=5.0) == 3.0
    assert _pause_s(well, moved_s=2.0, now_s=5.0) == 1.0


def test_admitted_excess_fails_its_claim_alone(tmp_path: Path) -> None:
    held = report(tmp_path, {"disobedient": DAMAGE | {"excess": 4_000.0, "excess_dropped": 0.98}})
    assert held == {"excess-dropped": False, "protected-disobedient": True}


def test_excess_of_a_publisher_counts_beyond_its_changing_limit() -> None:
    publisher = Publisher("t", 0, 10.0, 0.5, DisobedientTopics("http://nowhere"))
    publisher.attempts = [(float(second), None if second < 2 else 0.5) for second in range(10)]
    publisher.drops = [1.0, 5.0, 6.0, 9.0]
    assert publisher.is_disobedient
    assert publisher.excess(2.0, 9.0) == (7 - 3.0, 2)


RING: Row = {"crossed_most": 0.98, "crossed_repeated": 0.0, "link_pause_s": 1.8, "head_pause_s": 1.9, "lost": 0.0}
RING |= {"repeated": 0.0, "missed_untold": 0.0, "control_p99_s": 0.01, "saturated_waiting_s": 4.0}


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, None),
        ({"crossed_repeated": 1.0}, "once-per-link"),
        ({"crossed_most": 1.01}, "once-per-link"),
        ({"link_pause_s": 2.1}, "pause-of-a-link"),
        ({"head_pause_s": 2.1}, "pause-of-a-head"),
        ({"lost": 1.0}, "ring-nothing-lost"),
        ({"missed_untold": 1.0}, "ring-nothing-lost"),
        ({"control_p99_s": 0.06}, "control-in-saturation"),
    ],
)
def test_each_fault_of_a_ring_fails_its_own_claim(tmp_path: Path, change: Row, broken: str | None) -> None:
    held = ring_report(tmp_path, change)
    assert len(held) == 5 and {name for name, holds in held.items() if not holds} == ({broken} if broken else set())


def test_control_of_a_ring_is_not_judged_without_saturation(tmp_path: Path) -> None:
    assert ring_report(tmp_path, {"saturated_waiting_s": 0.1})["control-in-saturation"] is None


def ring_report(tmp_path: Path, change: Row) -> dict[str, bool | None]:
    flow: Row = {"kind": "flow", "scenario": "ring", "at_s": 1.0, "latency_s": 0.01}
    rows = [flow | {"edge": "east → east"}, flow | {"edge": "east → west"}]
    made = LiveSite().report(table_of([*rows, {"kind": "run", "scenario": "ring", **RING, **change}]), tmp_path)
    assert all(Path(path).stat().st_size for path in made.files)
    return {claim.id: claim.holds for claim in made.claims}


def test_missed_messages_of_a_ring_count_as_untold_without_a_gap() -> None:
    reader = RingReader("east", "ring/volatile")
    for number, now_s in ((1, 1.0), (2, 1.01), (5, 1.5)):
        reader.receive(b"0 %d %.1f x" % (number, now_s), now_s)
    flow = reader.flows[0]
    assert (flow.missed, flow.missed_untold) == (2, 2)
    flow.told = True
    reader.receive(b"0 7 1.6 x", 1.6)
    reader.receive(b"0 7 1.6 x", 1.6)
    assert (flow.missed, flow.missed_untold, flow.repeated) == (3, 2, 1)
    assert flow.longest_pause_s(1.4, 1.7) == pytest.approx(0.49)
    assert flow.longest_pause_s(1.6, 4.6) == pytest.approx(3.0)


@pytest.mark.parametrize("options", [{"scenarios": "flood"}, {"speed": "2"}])
def test_unknown_scenario_or_option_is_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"epeer-live|scenarios"):
        run_live(options, tmp_path, print)
