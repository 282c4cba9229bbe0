"""The Prometheus metrics of an edge node. No label names an operator or a publisher, so their number is bounded."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tocsin.runtime.edge.node import NodeProcess
from tocsin.runtime.edge.root import RootProcess


class EdgeMetrics(Collector):
    def __init__(self, node: NodeProcess, root: RootProcess | None) -> None:
        self._node = node
        self._root = root
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.requests = Counter(
            "tocsin_http_requests", "HTTP requests answered", ["method", "status"], registry=self._registry
        )

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        node, report = self._node, self._node.report()
        gauges = {
            "generation": ("The generation that runs here; 0 if none runs", node.member.runs),
            "operators": ("Operators held", len(report.operators)),
            "memory_percent": ("Memory of operators and waiting data, of the budget", report.usage.memory_pct),
            "cpu_percent": ("Processor time of operators, of the budget", report.usage.cpu_pct),
            "network_percent": ("Bytes to the parent, of the budget", report.usage.network_pct),
            "inbox_bytes": ("Data that waits to be processed", report.inbox_bytes),
            "backlog_bytes": ("Accepted readings that wait in the entry log", node.feed.waiting_bytes),
            "rows_per_second": ("Rows that arrive", report.rows_per_s),
            "longest_overload_seconds": (
                "The longest time above U_t, from its measurement",
                node.overloads.longest_s(time.monotonic()),
            ),
        }
        yield from _gauges(gauges)
        counters = {
            "raw_bytes": ("Readings that entered here, as Arrow columns", report.raw_bytes),
            "bytes_up": ("Bytes sent to the parent on data connections", report.bytes_up),
            "log_bytes": ("Bytes written to the entry log", node.feed.journal.written_bytes),
            "log_fsyncs": ("Fsyncs of the entry log", node.feed.journal.fsyncs),
            "generations": ("Generations that started here", node.generations),
            "overloads": ("How often the load was measured above U_t", node.overloads.total),
            "handovers": ("Hand-overs that this node gave", node.handovers.total),
            "handover_pause_seconds": ("Seconds for which operators stood still in them", node.handovers.pause_s),
        }
        yield from _counters(counters)
        family = CounterMetricFamily(
            "tocsin_edge_rejections", "Messages and data that the core rejected", labels=["code"]
        )
        for code, number in sorted(node.rejections.items()):
            family.add_metric([code], number)
        yield family
        if self._root is not None:
            yield from self._collect_root(self._root)

    def _collect_root(self, root: RootProcess) -> Iterable[Metric]:
        yield from _gauges(
            {
                "outbox_entries": ("Entries that wait to be published", root.outbox_size),
                "nodes_alive": ("Nodes whose lease holds", len(root.control.living)),
                "queries": ("Deployed queries", len(root.control.state.queries)),
            }
        )
        publisher = root.publisher
        yield from _counters(
            {
                "result_rows": ("Result rows accepted", sum(root.result_rows.values())),
                "recoveries": ("Generations started since the start of the root", root.control.recoveries),
                "published_rows": (
                    "Result rows stored by the data cluster",
                    publisher.published_rows if publisher else 0,
                ),
                "refused_rows": (
                    "Result rows that do not fit their dataset",
                    publisher.refused_rows if publisher else 0,
                ),
                "publish_failures": ("Failed attempts to publish results", publisher.failures if publisher else 0),
            }
        )


def _gauges(values: Mapping[str, tuple[str, float]]) -> Iterable[Metric]:
    for name, (help_text, value) in values.items():
        yield GaugeMetricFamily(f"tocsin_edge_{name}", help_text, value=value)


def _counters(values: Mapping[str, tuple[str, float]]) -> Iterable[Metric]:
    for name, (help_text, value) in values.items():
        yield CounterMetricFamily(f"tocsin_edge_{name}", help_text, value=value)
