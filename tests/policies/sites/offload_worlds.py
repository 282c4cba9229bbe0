"""Hand-made and random sites for offloading, and the site after a plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import strategies as st

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.load import state_of
from tocsin.policies.sites.types import (
    BrokerReport,
    Bundle,
    ClientId,
    Load,
    LoadState,
    LoadThresholds,
    OffloadPlan,
    OffloadSnapshot,
    PublisherId,
    Reach,
    SiteId,
    total,
    utilisation,
)
from tocsin.policies.topics.types import TopicName

HERE, THERE = SiteId("here"), SiteId("there")
THRESHOLDS = LoadThresholds()
EDGE = Load(1_000.0, 1_000.0, 1_000.0)
HEAD = Load(1_000.0, 1_000.0, math.inf)


def bundle(
    topic: str,
    matched: float,
    delay_s: float = 10.0,
    clients: int = 1,
    sent: float = 1.0,
    reach: Reach = Reach.LOCAL,
    received: float = 1.0,
) -> Bundle:
    """A topic's subscribers at an edge; `sent` bytes/s to each."""
    names = tuple(SubscriberId(f"{topic}-{n}") for n in range(clients))
    return Bundle(TopicName(topic), delay_s, reach, Load(received, sent * clients, matched), names, (sent,) * clients)


def publishing(topic: str, received: float, sent: float, delay_s: float = 10.0, reach: Reach = Reach.LOCAL) -> Bundle:
    """A topic's two publishers at a head."""
    names: tuple[ClientId, ...] = (PublisherId(f"{topic}-p0"), PublisherId(f"{topic}-p1"))
    return Bundle(TopicName(topic), delay_s, reach, Load(received, sent, 0.0), names, (received / 2,) * 2)


def edge(
    name: str, bundles: Iterable[Bundle], site: SiteId = HERE, capacity: Load = EDGE, state: LoadState | None = None
) -> tuple[BrokerReport, tuple[Bundle, ...]]:
    all_bundles = tuple(bundles)
    load = total(bundle.load for bundle in all_bundles)
    measured = state_of(utilisation(load, capacity), THRESHOLDS)
    topics = frozenset(bundle.topic for bundle in all_bundles)
    is_head = math.isinf(capacity.matched_per_s)
    return BrokerReport(BrokerId(name), site, is_head, state or measured, load, capacity, topics), all_bundles


def site(
    *brokers: tuple[BrokerReport, tuple[Bundle, ...]], neighbours: tuple[BrokerReport, ...] = (), generation: int = 1
) -> OffloadSnapshot:
    reports = tuple(report for report, _ in brokers)
    bundles = {report.broker: of_broker for report, of_broker in brokers}
    return OffloadSnapshot(generation, 0.0, reports, bundles, neighbours)


def after(snapshot: OffloadSnapshot, plan: OffloadPlan) -> OffloadSnapshot:
    """The site after every move, with states measured again. Moved clients join the target's bundle of their topic."""
    by_topic: dict[BrokerId, dict[TopicName, Bundle]] = {
        broker: {bundle.topic: bundle for bundle in bundles} for broker, bundles in snapshot.bundles.items()
    }
    for move in (move for offload in plan.offloads for move in offload.moves):
        source = by_topic[move.source]
        whole = source.pop(move.topic)
        stay = tuple(client for client in whole.clients if client not in move.clients)
        if stay:
            source[move.topic] = _part(whole, stay)
        if move.target in by_topic:
            present = by_topic[move.target].get(move.topic)
            joined = (*(present.clients if present else ()), *move.clients)
            by_topic[move.target][move.topic] = _part(whole, joined)
    brokers = []
    for report in snapshot.brokers:
        load = total(bundle.load for bundle in by_topic[report.broker].values())
        state = state_of(utilisation(load, report.capacity), THRESHOLDS)
        brokers.append(replace(report, load=load, state=state, topics=frozenset(by_topic[report.broker])))
    bundles: Mapping[BrokerId, tuple[Bundle, ...]] = {
        broker: tuple(of_broker.values()) for broker, of_broker in by_topic.items()
    }
    return replace(snapshot, generation=snapshot.generation + 1, brokers=tuple(brokers), bundles=bundles)


def _part(whole: Bundle, clients: tuple[ClientId, ...]) -> Bundle:
    rate = whole.client_bytes_per_s[0]
    load = whole.load._replace(out_bytes_per_s=rate * len(clients))
    return replace(whole, clients=clients, client_bytes_per_s=(rate,) * len(clients), load=load)


@st.composite
def sites(draw: st.DrawFn, most_topics: int = 30) -> OffloadSnapshot:
    """Two to five edges of different capacity, topics of any size at one or two of them."""
    edges = draw(st.integers(2, 5))
    bundles: list[list[Bundle]] = [[] for _ in range(edges)]
    for number in range(draw(st.integers(0, most_topics))):
        matched = float(draw(st.integers(1, 300)))
        sent = float(draw(st.sampled_from([0, 1, 20, 100])))
        delay_s = float(draw(st.integers(1, 50)))
        reach = draw(st.sampled_from(list(Reach)))
        for place in draw(st.sets(st.integers(0, edges - 1), min_size=1, max_size=2)):
            count = draw(st.integers(1, 4))
            drawn = bundle(f"t{number}", matched, delay_s, count, sent, reach, received=matched / 10)
            clients = tuple(SubscriberId(f"{client}@{place}") for client in drawn.clients)
            bundles[place].append(replace(drawn, clients=clients))
    capacities = [float(draw(st.integers(600, 1_500))) for _ in range(edges)]
    return site(
        *(
            edge(f"e{n}", of_edge, capacity=Load(capacity, capacity, capacity))
            for n, (of_edge, capacity) in enumerate(zip(bundles, capacities, strict=True))
        )
    )
