"""Plans of offloadings from reported loads and profiles: snapshot, policy, margins [ePEER §4.4.1.3, §4.4.3.1].

`site_control` collects the profiles, decides when to plan, and carries the plan out.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from tocsin.coordinator.records import BrokerRecord
from tocsin.coordinator.rules import CoordinatorRules, SitePolicy
from tocsin.coordinator.site_heads import head_bundles
from tocsin.coordinator.site_loads import SiteLoads, topic_load
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId, TopicName
from tocsin.policies.sites.baselines import POLICIES
from tocsin.policies.sites.load import state_of
from tocsin.policies.sites.types import (
    BrokerReport,
    Bundle,
    Load,
    LoadState,
    LoadThresholds,
    OffloadParams,
    OffloadPlan,
    OffloadSnapshot,
    Reach,
    total,
    utilisation,
)
from tocsin.wire.site_link import VISITOR_MARK, Role, SiteProfile, TopicLoad

ReachOf = Callable[[TopicName], Reach]
_Attempt = tuple[LoadThresholds, Container[tuple[BrokerId, TopicName]], tuple[BrokerReport, ...]]
STALE_S = 3.0
"""A broker without a report for so long takes no part: three reports are missing."""


def site_reports(turn: Turn, loads: SiteLoads) -> list[BrokerReport]:
    """The heads and edges that reported lately.

    A plan counts the average or the latest second, whichever is larger: in a rising load the average is too small, and
    the clients of a second offloading would move although one would have been enough. While publishers are limited, the
    plan counts what they offer: a broker whose load fits only because of the limits is overloaded, so receivers move
    as soon as another broker has room for the messages that the limits keep back.
    """
    reports = []
    for broker in turn.registry.brokers.values():
        report, at_s = loads.report(broker.id), loads.received_s(broker.id)
        if broker.role is Role.PLAIN or not broker.linked or report is None or at_s is None:
            continue
        if turn.now_s - at_s <= STALE_S:
            load = _larger(report.load, latest_load(loads, broker.id))
            state = _state(broker, report)
            if loads.has_demand:
                state = max(state, state_of(utilisation(load, report.capacity), thresholds_of(turn.rules)))
            reports.append(replace(report, load=load, state=state))
    return reports


def latest_load(loads: SiteLoads, broker: BrokerId) -> Load:
    """The load of the last reported second, with the messages that limits kept back."""
    return total(topic_load(topic) for topic in loads.demanded_topics(broker).values())


def _larger(average: Load, latest: Load) -> Load:
    return Load(*map(max, average, latest))


def _state(broker: BrokerRecord, report: BrokerReport) -> LoadState:
    """A broker that drains, is suspect or on probation keeps its clients and accepts none."""
    return LoadState.HIGH if report.state is LoadState.LOW and not broker.trusted else report.state


def thresholds_of(rules: CoordinatorRules) -> LoadThresholds:
    return LoadThresholds(rules.site_low, rules.site_high)


def plan_offloads(
    turn: Turn,
    loads: SiteLoads,
    reports: Sequence[BrokerReport],
    profiles: Mapping[BrokerId, SiteProfile],
    neighbours: tuple[BrokerReport, ...] = (),
    resting: Container[tuple[BrokerId, TopicName]] = (),
    reach_of: ReachOf = lambda topic: Reach.LOCAL,
) -> OffloadPlan:
    """The plan of the policy in the rules; of several that help equally many brokers, the calmest.

    `drd-lb` plans five times at most. The first plan relieves and fills brokers to TH_low, so that noise does not
    overload them again, and moves no `resting` topic. The second fills them to TH_high, as the thesis does. The third
    also moves resting topics. The last two use edges of `neighbours` too: clients leave their site only if it cannot
    help itself [ePEER §4.4]. They leave edges with visitors out, which send their visitors home first. The policies to
    compare with plan as they are, and inside the site alone.
    """
    policy, thresholds, generation = turn.rules.site_policy, thresholds_of(turn.rules), turn.registry.generation
    if policy is SitePolicy.NONE:
        overloaded = tuple(report.broker for report in reports if report.state is LoadState.OVERLOAD)
        return OffloadPlan(generation, str(policy), limited=overloaded)
    calm, full = LoadThresholds(thresholds.low, thresholds.low), thresholds
    attempts: list[_Attempt] = [(full, (), ())]
    if policy is SitePolicy.DRD_LB:
        attempts = [(calm, resting, ()), (full, resting, ()), (full, (), ())]
        attempts += [(calm, resting, neighbours), (full, (), neighbours)] if neighbours else []
    best: OffloadPlan | None = None
    unvisited = {broker: profile for broker, profile in profiles.items() if not has_visitors(profile)}
    for limits, staying, helpers in attempts:
        moving = unvisited if helpers else profiles
        snapshot = make_snapshot(turn, loads, reports, moving, helpers, staying, reach_of)
        plan = POLICIES[policy].plan(snapshot, OffloadParams(thresholds=limits))
        if best is None or len(plan.limited) < len(best.limited):
            best = plan
        if not best.limited:
            break
    assert best is not None
    return best


def has_visitors(profile: SiteProfile) -> bool:
    """A visitor continues at its own site by the numbers of flows. It cannot move on to a third site."""
    return any(VISITOR_MARK in client for clients in profile.topics.values() for client, _ in clients)


def make_snapshot(
    turn: Turn,
    loads: SiteLoads,
    reports: Sequence[BrokerReport],
    profiles: Mapping[BrokerId, SiteProfile],
    neighbours: tuple[BrokerReport, ...] = (),
    resting: Container[tuple[BrokerId, TopicName]] = (),
    reach_of: ReachOf = lambda topic: Reach.LOCAL,
) -> OffloadSnapshot:
    """`resting`: (broker, topic) pairs that stay where they are. `reach_of`: where a topic's publishers are."""
    topics = turn.registry.topics.topics
    demanded = {broker: loads.demanded_topics(broker) for broker in profiles}
    bundles = {
        broker: tuple(
            bundle
            for topic, clients in profile.topics.items()
            if (record := topics.get(topic)) is not None and (broker, topic) not in resting
            if (bundle := make_bundle(record, clients, demanded[broker].get(topic), loads.has_demand, reach_of(topic)))
            is not None
        )
        for broker, profile in profiles.items()
    }
    bundles |= {
        report.broker: tuple(head_bundles(turn, loads, report.broker, resting))
        for report in reports
        if report.is_head and report.state is LoadState.OVERLOAD
    }
    return OffloadSnapshot(turn.registry.generation, turn.now_s, tuple(reports), bundles, neighbours)


def make_bundle(
    record: TopicRecord,
    clients: list[tuple[str, float]],
    reported: TopicLoad | None,
    is_limited: bool = False,
    where: Reach = Reach.LOCAL,
) -> Bundle | None:
    """The receivers of one topic at an edge; None without receivers. An edge matches a message once for all of them.

    `is_limited`: the clients get less than `reported`, because limits keep messages back.
    """
    rates = {SubscriberId(client): _sane(rate) for client, rate in clients}
    if not rates:
        return None
    sent = tuple(rates.values())
    if is_limited and reported is not None:
        sent = _at_least(sent, reported.out_bytes_per_s)
    received, matched = (max(sent), 0.0) if reported is None else (reported.in_bytes_per_s, reported.matched_per_s)
    load = Load(received, sum(sent), matched)
    latency_s = 0.0 if record.latency is None else record.latency.worst_s or 0.0
    bundle = Bundle(record.name, record.tolerated_delay_s, where, load, tuple(rates), sent)
    return replace(bundle, latency_s=latency_s)


def _at_least(rates: tuple[float, ...], out_bytes_per_s: float) -> tuple[float, ...]:
    """The rates of a bundle's clients, raised to the output of their topic in proportion."""
    whole = sum(rates)
    if whole >= out_bytes_per_s:
        return rates
    if whole == 0.0:
        return (out_bytes_per_s / len(rates),) * len(rates)
    return tuple(rate * out_bytes_per_s / whole for rate in rates)


def _sane(rate: float) -> float:
    return rate if 0.0 <= rate < 1e18 else 0.0
