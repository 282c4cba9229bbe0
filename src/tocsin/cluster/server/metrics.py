"""Prometheus metrics: counters of this process, and gauges that are read from the data cluster at each scrape.

Labels are datasets, channels and feeds, which an administrator declares. Subscribers and subscriptions are no labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tocsin.cluster.engine import DataCluster
from tocsin.cluster.server.lateness import LateChannel

_DURATIONS_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 300)


class ClusterMetrics:
    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, description: str, *labels: str) -> Counter:
            return Counter(f"tocsin_{name}", description, labels, registry=registry)

        self.accepted = accepted = counter("records_accepted", "Records stored", "dataset")
        refused = counter("records_refused", "Records refused one by one", "dataset")
        duplicates = counter("records_duplicate", "Records whose key was stored already", "dataset")
        self.requests_refused = counter(
            "publish_requests_refused", "Bodies of records refused as a whole", "dataset", "status"
        )
        self.duration = Histogram(
            "tocsin_execution_duration_seconds",
            "How long executions took",
            ["channel"],
            buckets=_DURATIONS_S,
            registry=registry,
        )
        self.results = counter("results", "Results of executions", "channel")
        self.result_bytes = counter("result_bytes", "Bytes of results as JSON", "channel")
        self.restarts = counter("ingestion_restarts", "Restarts of streaming queries that failed", "query")
        self.requests = counter("http_requests", "HTTP requests answered", "method", "status")
        # Looking up a labelled counter takes longer than counting.
        self._records_of = cache(lambda dataset: [of.labels(dataset) for of in (accepted, duplicates, refused)])
        self._requests_of = cache(lambda method, status: self.requests.labels(method, str(status)))

    def count_records(self, dataset: str, accepted: int, duplicates: int, refused: int) -> None:
        """Count the records of a stored request."""
        for counter, records in zip(self._records_of(dataset), (accepted, duplicates, refused), strict=True):
            if records:
                counter.inc(records)

    def count_request(self, method: str, status: int) -> None:
        self._requests_of(method, status).inc()

    def watch(
        self, cluster: DataCluster, missed: Callable[[str], int], late: Callable[[], Iterable[LateChannel]]
    ) -> None:
        """Report the state of this cluster too.

        `missed` returns the number of missed ticks of a channel, and `late` the late channels.
        """
        self._registry.register(_ClusterCollector(cluster, missed, late))

    def records(self) -> int:
        """Records stored since the process started, in all datasets."""
        samples = (sample for metric in self.accepted.collect() for sample in metric.samples)
        return int(sum(sample.value for sample in samples if sample.name.endswith("_total")))

    def exposition(self) -> bytes:
        """The metrics in Prometheus text format. Blocks: reads the catalog."""
        return generate_latest(self._registry)


class _ClusterCollector(Collector):
    def __init__(
        self, cluster: DataCluster, missed: Callable[[str], int], late: Callable[[], Iterable[LateChannel]]
    ) -> None:
        self._cluster = cluster
        self._missed = missed
        self._late = late

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
        subscriptions = GaugeMetricFamily("tocsin_subscriptions", "Backend subscriptions", labels=label)
        lateness = GaugeMetricFamily("tocsin_channel_late_seconds", "Since when results are late", labels=label)
        late_s = {late.channel: late.late_s for late in self._late()}
        letters = GaugeMetricFamily("tocsin_dead_letters", "Records that a channel passed over", labels=label)
        counts = self._cluster.catalog.dead_letters.counts()
        for live in self._cluster.channels.all():
            name = [live.prepared.channel.name]
            executions.add_metric(name, live.executions)
            empty.add_metric(name, live.empty)
            missed.add_metric(name, self._missed(live.prepared.channel.name))
            failed.add_metric(name, live.failures)
            subscriptions.add_metric(name, live.subscribers.count)
            lateness.add_metric(name, late_s.get(live.name, 0.0))
            letters.add_metric(name, counts.get(live.name, 0))
        yield from (executions, empty, missed, failed, subscriptions, lateness, letters)
