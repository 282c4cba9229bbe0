"""Offloading at the coordinator: when it starts, how it ends, and that it comes to rest."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.coordinator.simulated_site import HEAD, SimulatedSite, Topic
from tocsin.coordinator.rules import CoordinatorRules, SitePolicy
from tocsin.model.ids import BrokerId, TopicName
from tocsin.policies.sites.types import LoadState
from tocsin.wire.site_link import Capacity, Role, SiteLoad, TopicLoad

E1, E2, E3, E4 = (BrokerId(f"e{number}") for number in range(1, 5))
CAPACITY = Capacity(None, 1_000_000.0, None)
"""1 MB/s of output: 100 receivers of ten messages a second of 1 kB each."""


def site(rules: CoordinatorRules | None = None, capacity: Capacity = CAPACITY) -> SimulatedSite:
    """Four edges at 70 %, with topics of different delays."""
    made = SimulatedSite((E1, E2, E3, E4), capacity, rules)
    for number, edge in enumerate((E1, E2, E3, E4)):
        for share in range(5):
            made.add_topic(f"t/{number}/{share}", edge, 14, Topic(10.0, delay_s=1.0 if share < 3 else 10.0))
    made.run(5.0)
    assert made.used[-1][1] == pytest.approx(dict.fromkeys(made.edges, 0.7))
    return made


def burst(made: SimulatedSite, factor: float, *topics: str) -> float:
    """Raise the rates of topics; returns the time."""
    for name in topics:
        made.topics[TopicName(name)].rate_per_s *= factor
    return made.now_s


OF_E1 = tuple(f"t/0/{share}" for share in range(5))


@pytest.mark.parametrize("fraction_s", [0.0, 0.25, 0.5, 0.75, 0.95])
@pytest.mark.parametrize("factor", [1.6, 2.0])
def test_burst_is_seen_within_two_seconds_and_relieved_within_five(fraction_s: float, factor: float) -> None:
    made = site()
    made.run(fraction_s)
    began_s = burst(made, factor, *OF_E1)
    before = made.clients()
    made.run(70.0)
    seen_s = next(at_s for at_s, states in made.states if states[E1] in (LoadState.OVERLOAD, LoadState.BUSY))
    assert seen_s - began_s <= 2.0
    calm_s = max(at_s for at_s, states in made.states if states[E1] in (LoadState.OVERLOAD, LoadState.BUSY))
    assert calm_s - began_s <= 5.0, "the last report of an overload or of BUSY"
    assert all(max(used.values()) <= 0.95 for at_s, used in made.used if at_s >= began_s + 5.0)
    assert made.redirected and made.redirected[-1][0] - began_s <= 3.0, "one offloading is enough"
    assert made.clients() == before
    assert made.busy() == frozenset()


def test_delay_tolerant_topics_move_first_and_together() -> None:
    made = site()
    burst(made, 1.4, *OF_E1)
    made.run(10.0)
    moved = {topic for _, _, topic, _, _ in made.redirected}
    assert moved == {TopicName("t/0/3")}
    assert len(made.redirected) == 14


def test_new_receivers_follow_a_topic_that_moved_whole() -> None:
    made = site()
    record = made.registry.topics.topics[TopicName("t/0/3")]
    record.receive_at = (E1, "ws://e1")
    burst(made, 1.4, *OF_E1)
    made.run(10.0)
    target = made.redirected[0][4]
    assert record.receive_at == (target, f"ws://{target}")


def test_each_decision_has_a_reason_in_log_and_trace() -> None:
    made = site()
    burst(made, 1.4, *OF_E1)
    made.run(10.0)
    kinds = [row.kind for row in made.rows if row.kind.startswith("offload")]
    assert kinds == ["offload", "offloaded"]
    (taken,) = [row for row in made.rows if row.kind == "offload"]
    assert taken.broker == E1 and taken.target in made.edges and taken.moves == 14
    assert taken.note == "overloaded: Uo 98.0 %"
    assert {"offload taken", "offload ended"} <= set(made.all_notes)


def test_short_peak_moves_no_receiver() -> None:
    made = site()
    made.run(0.5)
    burst(made, 1.8, *OF_E1)
    made.run(0.6)
    burst(made, 1 / 1.8, *OF_E1)
    made.run(20.0)
    assert made.redirected == []


def test_site_without_policy_moves_no_receiver_and_reports_the_overload() -> None:
    made = site(CoordinatorRules(site_policy=SitePolicy.NONE))
    burst(made, 1.6, *OF_E1)
    made.run(10.0)
    assert made.redirected == []
    assert made.core.site_control.limited == (E1,)


def test_site_at_its_limit_moves_nothing_and_names_the_overloaded_brokers() -> None:
    made = site()
    burst(made, 1.6, *made.topics)
    made.run(10.0)
    assert made.redirected == []
    assert set(made.core.site_control.limited) == {E1, E2, E3, E4}
    refused = [row for row in made.rows if row.kind == "offload-refused"]
    assert {row.broker for row in refused} == {E1, E2, E3, E4}
    assert refused[0].note is not None and refused[0].note.endswith("no broker has enough capacity left")
    burst(made, 1 / 1.6, *made.topics)
    made.run(5.0)
    assert made.core.site_control.limited == ()


def test_matching_overload_moves_whole_topics() -> None:
    made = site(capacity=Capacity(None, None, 50.0 / 0.7))
    made.core.site_loads.set_capacity(E1, Capacity(None, None, 50.0))
    made.run(10.0)
    assert {(topic, source) for _, _, topic, source, _ in made.redirected} == {(TopicName("t/0/3"), E1)}
    assert made.used[-1][1][E1] == pytest.approx(0.8)


def test_lowered_capacity_is_an_overload_at_once() -> None:
    made = site()
    made.core.site_loads.set_capacity(E1, Capacity(None, 700_000.0, None))
    made.run(0.35)
    assert made.redirected and made.redirected[0][3] == E1


# -- the end of BUSY ---------------------------------------------------------------------------------------------------


def test_offloading_without_confirmations_ends_at_the_time_out() -> None:
    made = site(CoordinatorRules(site_offload_s=4.0))
    made.edges[E1].answers = False
    burst(made, 1.5, *OF_E1)
    made.run(4.0)
    assert E1 in made.busy()
    made.run(5.0)
    failed = [row for row in made.rows if row.kind == "offload-failed"]
    assert failed and failed[0].detail is not None and failed[0].detail["ending"] == "timed-out"
    made.edges[E1].answers = True
    made.run(15.0)
    assert made.busy() == frozenset()
    assert made.used[-1][1][E1] <= 0.95, "a later round relieves the edge"


def test_receivers_that_ignore_redirects_do_not_keep_others_from_moving() -> None:
    made = site(CoordinatorRules(site_offload_s=4.0))
    for name in OF_E1[3:]:
        made.topics[TopicName(name)].moves = False
    began_s = burst(made, 1.5, *OF_E1)
    made.run(30.0)
    assert {topic for _, _, topic, _, _ in made.redirected} & set(OF_E1[:3]), "less tolerant topics move instead"
    assert all(used[E1] <= 0.95 for at_s, used in made.used if at_s >= began_s + 20.0)
    assert made.busy() == frozenset()
    attempts = {(at_s, topic) for at_s, _, topic, _, _ in made.redirected}
    assert len(attempts) == len({topic for _, topic in attempts}), "one attempt for each topic"


@pytest.mark.parametrize("reconnects", [True, False])
def test_offloading_ends_when_a_broker_loses_its_link(reconnects: bool) -> None:
    made = site()
    made.move_s = 3.0
    burst(made, 1.5, *OF_E1)
    made.run(3.0)
    _, _, _, source, target = made.redirected[0]
    assert {source, target} <= made.busy()
    made.cut(target)
    if reconnects:
        made.register(target, topics=True, role=Role.EDGE)
    made.run(0.3)
    failed = [row for row in made.rows if row.kind == "offload-failed"]
    assert failed[0].detail is not None and failed[0].detail["ending"] == "broker-lost"
    made.run(4.0)
    assert not {source, target} & made.core.site_control._migrations.busy


def test_edge_that_sends_no_profile_is_neither_relieved_nor_limited() -> None:
    made = site(CoordinatorRules(site_profile_s=0.5))
    made._profile = lambda broker, number: None  # type: ignore[method-assign]
    burst(made, 1.5, *OF_E1)
    made.run(6.0)
    assert made.redirected == [] and made.core.site_control.limited == ()
    assert "brokers sent no profile in time" in made.all_notes


def test_draining_edge_accepts_no_receivers() -> None:
    made = site()
    for edge in (E2, E3):
        made.broker(edge).draining = True
    burst(made, 1.5, *OF_E1)
    made.run(10.0)
    assert {target for _, _, _, _, target in made.redirected} == {E4}


def test_overloaded_head_is_limited_if_the_site_has_no_other() -> None:
    made = site()
    made.core.site_loads.set_capacity(HEAD, Capacity(out_bytes_per_s=100.0))
    for _ in range(4):
        made.send(HEAD, SiteLoad([TopicLoad(TopicName("t/0/0"), 50.0, 150.0, 1.0, 0, 1)]))
        made.run(1.0)
    assert made.core.site_control.limited == (HEAD,)


def test_topic_that_arrived_lately_stays_if_another_one_can_move() -> None:
    made = site()
    burst(made, 1.5, *OF_E1)
    made.run(10.0)
    target = made.redirected[0][4]
    number = {E1: 0, E2: 1, E3: 2, E4: 3}[target]
    made.redirected.clear()
    burst(made, 1.4, *(f"t/{number}/{share}" for share in range(3)))
    made.run(10.0)
    assert made.redirected and TopicName("t/0/3") not in {topic for _, _, topic, _, _ in made.redirected}


@pytest.mark.parametrize("policy", [SitePolicy.PEER_LB, SitePolicy.PEER_DRD])
def test_baselines_even_out_loads_and_come_to_rest(policy: SitePolicy) -> None:
    made = site(CoordinatorRules(site_policy=policy))
    burst(made, 1.5, *OF_E1)
    made.run(60.0)
    assert made.redirected
    made.redirected.clear()
    made.run(30.0)
    assert made.redirected == [] and made.busy() == frozenset()


# -- properties --------------------------------------------------------------------------------------------------------

RATES = st.lists(st.floats(1.0, 40.0), min_size=8, max_size=8)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    RATES,
    st.lists(st.integers(1, 12), min_size=8, max_size=8),
    st.lists(st.floats(0.3, 4.0), min_size=8, max_size=8),
    st.sampled_from([math.inf, 0.2, 1.5, 4.0]),
    st.booleans(),
)
def test_site_comes_to_rest_without_overloading_a_helper(
    rates: list[float], receivers: list[int], factors: list[float], loses_link_s: float, answers: bool
) -> None:
    rules = CoordinatorRules(site_offload_s=3.0)
    made = SimulatedSite((E1, E2, E3), Capacity(100_000.0, 600_000.0, 120.0), rules)
    for number, (rate, count) in enumerate(zip(rates, receivers, strict=True)):
        edge = (E1, E2, E3)[number % 3]
        made.add_topic(f"t/{number}", edge, count, Topic(rate, delay_s=float(1 + number % 4)))
    made.run(3.0)
    made.edges[E1].answers = answers
    for name, factor in zip(list(made.topics), factors, strict=True):
        burst(made, factor, name)
    before = made.clients()
    if math.isfinite(loses_link_s):
        made.run(loses_link_s)
        made.cut(E2)
        made.register(E2, topics=True, role=Role.EDGE)
    helpers_before = {edge: made.utilisation(edge) for edge in made.edges}
    made.run(60.0)
    assert made.clients() == before
    for edge in made.edges:
        grew = made.utilisation(edge) > helpers_before[edge] + 1e-9
        assert not grew or made.utilisation(edge) <= 0.95 + 1e-6, "no helper is overloaded by what it accepts"
    if answers:
        made.redirected.clear()
        made.run(70.0)
        assert made.redirected == [], "a fixed point"
    made.edges[E1].answers = True
    made.run(10.0)
    for broker, own in made.edges.items():  # with all quiet, every broker leaves BUSY
        own.receivers = {}
        made.core.site_loads.set_capacity(broker, Capacity())
    made.run(10.0)
    assert made.busy() == frozenset()
