"""Prometheus metrics of a coordinator. Labels are brokers and states, never subscribers or subscriptions."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tocsin.coordinator.core import Coordinator
from tocsin.policies.sites import types as site_types
from tocsin.runtime.coordinator.neighbours import NeighbourConnections


class CoordinatorMetrics:
    def __init__(
        self,
        core: Callable[[], Coordinator | None],
        neighbours: Callable[[], NeighbourConnections | None] = lambda: None,
    ) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "tocsin_coordinator_http_requests", "HTTP requests answered", ["method", "status"], registry=registry
        )
        registry.register(_CoreCollector(core))
        registry.register(_SitesCollector(core, neighbours))

    def exposition(self) -> bytes:
        return generate_latest(self._registry)


class _CoreCollector(Collector):
    def __init__(self, core: Callable[[], Coordinator | None]) -> None:
        self._core = core

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        core = self._core()
        if core is None:
            return
        registry = core.registry
        brokers = GaugeMetricFamily("tocsin_coordinator_brokers", "Brokers known", labels=["state"])
        for state, number in Tally(broker.state for broker in registry.brokers.values()).items():
            brokers.add_metric([state], number)
        yield brokers
        load = GaugeMetricFamily("tocsin_coordinator_broker_load_bytes_per_second", "Load", labels=["broker"])
        hosted = GaugeMetricFamily("tocsin_coordinator_broker_subscribers", "Subscribers hosted", labels=["broker"])
        for broker in registry.brokers:
            load.add_metric([broker], core.loads.of(broker).bytes_per_s)
            hosted.add_metric([broker], len(registry.hosted(broker)))
        yield from (load, hosted)
        yield from _topic_loads(core)
        yield GaugeMetricFamily("tocsin_coordinator_subscribers", "Users known", value=len(registry.subscribers))
        migrations = GaugeMetricFamily("tocsin_coordinator_migrations", "Migrations in progress", labels=["step"])
        for step, number in Tally(str(migration.step) for migration in registry.migrations.values()).items():
            migrations.add_metric([step], number)
        yield migrations


class _SitesCollector(Collector):
    def __init__(
        self, core: Callable[[], Coordinator | None], neighbours: Callable[[], NeighbourConnections | None]
    ) -> None:
        self._core = core
        self._neighbours = neighbours

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        core, connections = self._core(), self._neighbours()
        if core is None or core.federation is None or connections is None:
            return
        links = GaugeMetricFamily("tocsin_coordinator_neighbour_up", "1 if the link is up", labels=["site"])
        trips = GaugeMetricFamily(
            "tocsin_coordinator_neighbour_round_trip_seconds", "Last round trip on the control link", labels=["site"]
        )
        for site, neighbour in core.federation.links.neighbours.items():
            links.add_metric([site], float(neighbour.connection is not None))
            if round_trips_s := connections.round_trips_s(site):
                trips.add_metric([site], round_trips_s[-1])
        labels = ["site", "source", "topic"]
        crossed = CounterMetricFamily(
            "tocsin_coordinator_flow_messages", "Messages received over a link", labels=labels
        )
        repeated = CounterMetricFamily("tocsin_coordinator_flow_repeats", "Those that the site had", labels=labels)
        for key, (received, repeats) in core.federation.crossed.totals().items():
            crossed.add_metric(list(key), received)
            repeated.add_metric(list(key), repeats)
        yield from (links, trips, crossed, repeated)


def _topic_loads(core: Coordinator) -> Iterable[Metric]:
    """Loads of topics, of the brokers that report them."""
    used = GaugeMetricFamily(
        "tocsin_coordinator_broker_topic_utilisation",
        "Offered load of topics as a share of the capacity: input (Ui), output (Uo), matching (Um)",
        labels=["broker", "metric"],
    )
    state = GaugeMetricFamily(
        "tocsin_coordinator_broker_topic_load_state", "0 LOW, 1 HIGH, 2 OVERLOAD, 3 BUSY", labels=["broker"]
    )
    waiting = GaugeMetricFamily(
        "tocsin_coordinator_broker_topic_waiting_bytes", "Bytes that wait for output", labels=["broker"]
    )
    sites = core.loads.sites
    for broker in core.registry.brokers:
        if (report := sites.report(broker)) is not None:
            for metric in site_types.Metric:
                used.add_metric([broker, str(metric)], report.used.of(metric))
            state.add_metric([broker], int(report.state))
            waiting.add_metric([broker], sites.waiting(broker)[0])
    yield from (used, state, waiting)
