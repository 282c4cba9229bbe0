"""What Prometheus scrapes. Counters of this process, and gauges that are read from the data cluster when asked for.

Labels are datasets, channels and feeds: what an administrator declared. Never a subscriber or a subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tocsin.cluster.engine import DataCluster

_DURATIONS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300)


class Metrics:
    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        dataset, channel = ["dataset"], ["channel"]
        self.accepted = Counter("tocsin_records_accepted", "Records stored", dataset, registry=registry)
        self.refused = Counter("tocsin_records_refused", "Records refused one by one", dataset, registry=registry)
        self.duplicates = Counter(
            "tocsin_records_duplicate", "Records whose key was stored already", dataset, registry=registry
        )
        self.requests_refused = Counter(
            "tocsin_publish_requests_refused",
            "Bodies of records refused as a whole",
            ["dataset", "status"],
            registry=registry,
        )
        self.duration = Histogram(
            "tocsin_execution_duration_seconds",
            "How long executions took",
            channel,
            buckets=_DURATIONS_S,
            registry=registry,
        )
        self.results = Counter("tocsin_results", "Results of executions", channel, registry=registry)
        self.result_bytes = Counter("tocsin_result_bytes", "Bytes of results as JSON", channel, registry=registry)
        self.restarts = Counter(
            "tocsin_ingestion_restarts", "Streaming queries that died and were started again", ["query"],
            registry=registry,
        )  # fmt: skip
        self.requests = Counter(
            "tocsin_http_requests", "HTTP requests answered", ["method", "status"], registry=registry
        )

    def watch(self, cluster: DataCluster, missed: Callable[[str], int]) -> None:
        """Report this cluster's state too; `missed` gives a channel's missed ticks."""
        self._registry.register(_ClusterCollector(cluster, missed))

    def records(self) -> int:
        """Stored since the process started, in all datasets."""
        samples = (sample for metric in self.accepted.collect() for sample in metric.samples)
        return int(sum(sample.value for sample in samples if sample.name.endswith("_total")))

    def exposition(self) -> bytes:
        """Blocks: reads the catalog."""
        return generate_latest(self._registry)


class _ClusterCollector(Collector):
    def __init__(self, cluster: DataCluster, missed: Callable[[str], int]) -> None:
        self._cluster = cluster
        self._missed = missed

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        yield from self._datasets()
        yield from self._channels()
        sequence = GaugeMetricFamily("tocsin_announcements_sequence", "The last execution announced to brokers")
        sequence.add_metric([], self._cluster.announcements.sequence)
        yield sequence

    def _datasets(self) -> Iterable[Metric]:
        backlog = GaugeMetricFamily("tocsin_backlog_bytes", "Accepted and not yet in the dataset", labels=["dataset"])
        version = GaugeMetricFamily("tocsin_dataset_version", "The last batch in the dataset", labels=["dataset"])
        for live in self._cluster.datasets.all():
            version.add_metric([live.dataset.name], live.writer.version)
            if live.gateway is not None:
                backlog.add_metric([live.dataset.name], live.gateway.backlog_bytes)
        yield backlog
        yield version

    def _channels(self) -> Iterable[Metric]:
        label = ["channel"]
        executions = CounterMetricFamily("tocsin_executions", "Executions, also those without results", labels=label)
        empty = CounterMetricFamily("tocsin_executions_empty", "Executions without results", labels=label)
        missed = CounterMetricFamily("tocsin_executions_missed", "Ticks an overrun covered", labels=label)
        failed = CounterMetricFamily("tocsin_executions_failed", "Executions that failed", labels=label)
        held = GaugeMetricFamily("tocsin_subscriptions", "Backend subscriptions", labels=label)
        for live in self._cluster.channels.all():
            name = [live.prepared.channel.name]
            executions.add_metric(name, live.executions)
            empty.add_metric(name, live.empty)
            missed.add_metric(name, self._missed(live.prepared.channel.name))
            failed.add_metric(name, live.failures)
            held.add_metric(name, live.subscribers.count)
        yield from (executions, empty, missed, failed, held)
