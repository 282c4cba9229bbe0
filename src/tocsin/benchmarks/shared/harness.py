"""What benchmarks share: a data cluster on a temporary root, a watch on memory, and how they end."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer


def announce(line: str) -> None:
    """Progress: on the error stream, so that the last line of the output stays the result."""
    print(line, file=sys.stderr, flush=True)


def finish(measured: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(measured))
    else:
        for name, value in measured.items():
            print(f"{name:32} {value:,.4g}" if isinstance(value, float) else f"{name:32} {value}")
    if measured.get("correct") is False:
        announce("the answers differ from the independent engine's")
        raise typer.Exit(1)


@contextmanager
def benchmark_cluster(application: str, master: str = "local[*]") -> Iterator[Any]:
    """A data cluster on a temporary root."""
    from tocsin.cluster.engine import DataCluster
    from tocsin.cluster.settings import ClusterSettings
    from tocsin.cluster.spark.session import make_session

    with tempfile.TemporaryDirectory(prefix="tocsin-bench-") as root:
        cluster = DataCluster(make_session(master), ClusterSettings(root=root), time.time)
        try:
            declare(cluster, application)
            yield cluster
        finally:
            cluster.close()


def declare(cluster: Any, application: str) -> None:
    from tocsin.cluster.applying import apply

    apply(cluster, application, "benchmark.sql", ".")


def publish(cluster: Any, dataset: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Through the gateway and into the dataset before this returns."""
    import msgspec

    from tocsin.cluster.feed.gateway import Accepted, RecordForm

    gateway = cluster.gateway(dataset)
    outcome = gateway.accept(msgspec.json.encode(list(records)), RecordForm.JSON)
    if not isinstance(outcome, Accepted) or outcome.refused_total:
        raise RuntimeError(f"the gateway refused benchmark records: {outcome}")
    gateway.sync()
    cluster.catch_up(dataset)


class MemoryWatch:
    """The highest resident memory of this process and all its children, sampled four times a second."""

    def __init__(self) -> None:
        self.peak_mib = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> MemoryWatch:
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        import psutil

        this = psutil.Process()
        while not self._stop.wait(0.25):
            total = 0
            for process in [this, *this.children(recursive=True)]:
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue  # it ended between the listing and the question
            self.peak_mib = max(self.peak_mib, total >> 20)


def memory_watch() -> MemoryWatch:
    return MemoryWatch()
