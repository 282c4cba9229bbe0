"""The frame of a benchmark: its command, output, timing, and a data cluster on a temporary root.

`tocsin --help` imports this module, so heavy libraries are imported inside the functions.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from tocsin.benchmarks.shared.machine import described_machine

Outcome = TypeVar("Outcome")


def announce(progress: str) -> None:
    """Print progress to the error stream, so that the last line of the output stays the result."""
    print(progress, file=sys.stderr, flush=True)


MISSING = 2
"""Exit code of a benchmark that lacks a package or a peer."""


def command(benchmark: Callable[..., Mapping[str, Any]], needs: Sequence[str] = ()) -> Callable[[typer.Typer], None]:
    """Return the `register` function of a benchmark's module.

    The command has the benchmark's options and `--json`. It prints the figures that the benchmark returns and the
    machine that it ran on, and exits with 1 if the figure `correct` is False. `needs` are packages that are not
    installed with the product: without them the command names them and exits with `MISSING`.
    """

    @wraps(benchmark)
    def run(*, as_json: bool, **options: Any) -> None:
        missing = [package for package in needs if importlib.util.find_spec(package) is None]
        if missing:
            name = benchmark.__name__.replace("_", "-")
            announce(f"tocsin bench {name}: not installed: {', '.join(missing)}; run `pip install {' '.join(missing)}`")
            raise typer.Exit(MISSING)
        figures = {"machine": described_machine(), **benchmark(**options)}
        if as_json:
            print(json.dumps(figures))
        else:
            for name, value in figures.items():
                print(f"{name:32} {value:,.4g}" if isinstance(value, float) else f"{name:32} {value}")
        if figures.get("correct") is False:
            announce("the benchmark's own check failed: see the figures and the lines above")
            raise typer.Exit(1)

    as_json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
    flag = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=as_json)
    options = inspect.signature(benchmark, eval_str=True).parameters.values()
    run.__signature__ = inspect.Signature([*options, flag])  # type: ignore[attr-defined]

    def register(app: typer.Typer) -> None:
        app.command()(run)

    return register


def timed(work: Callable[[], Outcome], clock: Callable[[], float] = time.perf_counter) -> tuple[Outcome, float]:
    """Return the outcome of the work and the seconds it took."""
    started_s = clock()
    outcome = work()
    return outcome, clock() - started_s


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tocsin-bench-")


@contextmanager
def benchmark_cluster(application: str, folder: str = ".") -> Iterator[Any]:
    """A data cluster on a temporary root, with this application declared. Its STATIC files lie in `folder`."""
    from tocsin.cluster.engine import DataCluster
    from tocsin.cluster.settings import ClusterSettings
    from tocsin.cluster.spark.session import make_session

    with temporary_folder() as root:
        cluster = DataCluster(make_session("local[*]"), ClusterSettings(root=root), time.time)
        try:
            declare(cluster, application, folder)
            yield cluster
        finally:
            cluster.close()


def declare(cluster: Any, application: str, folder: str = ".") -> None:
    from tocsin.cluster.applying import apply

    apply(cluster, application, "benchmark.sql", folder)


def publish(cluster: Any, dataset: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Send records through the gateway and return when they are in the dataset."""
    import msgspec

    from tocsin.cluster.feed.gateway import Accepted, RecordForm

    gateway = cluster.gateway(dataset)
    outcome = gateway.accept(msgspec.json.encode(list(records)), RecordForm.JSON)
    if not isinstance(outcome, Accepted) or outcome.refused_total:
        raise RuntimeError(f"the gateway refused benchmark records: {outcome}")
    gateway.sync()
    cluster.catch_up(dataset)


def stored_results(cluster: Any, channel: str, execution: int) -> set[tuple[int, str]]:
    """(subscription number, report id) of an execution, read from its result files; empty if a pair is repeated."""
    from tocsin.cluster.catalog import in_catalog, results_owner
    from tocsin.cluster.store.merging import read_files

    pairs: list[tuple[int, str]] = []
    owner = results_owner(channel, cluster.channel(channel).epoch)
    files = cluster.catalog.files.of(owner, execution - 1, execution)
    contents = cluster.catalog.files.contents([file.path for file in files if in_catalog(file.path)])
    for file in files:
        table = read_files(cluster.storage, [file], contents).select(["_tocsin_subscription", "report_id"])
        pairs += zip(*(column.to_pylist() for column in table.columns), strict=True)
    distinct = set(pairs)
    return distinct if len(distinct) == len(pairs) else set()
