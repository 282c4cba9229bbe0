"""Runs an experiment as one Spark job and writes its table, figures and report.

An experiment is a module of this folder that defines `EXPERIMENT`; nothing lists them. The runner asks it for its
settings, gives each setting to a Spark task, puts the rows in the order of the settings (so that scheduling cannot be
seen in the result), and hands the table to its report. It knows nothing of what is measured. Driven by
`tocsin experiment` and by tests; this is the one module of the folder that sees Spark.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

import tocsin.experiments as package
from tocsin.experiments.report import ExperimentReport, plain, render

if TYPE_CHECKING:
    from pyspark import SparkContext

Setting = Mapping[str, Any]
Row = dict[str, Any]
Progress = Callable[[int, int], None]
"""Called with (tasks done, tasks in all)."""

TASKS_AT_MOST = 256
"""Beyond this many settings a task takes several: starting a task costs some 10 ms, which tiny runs should not pay."""
_POLL_S = 0.2


class Reporting(Protocol):
    """What makes a report of a table of runs, wherever they were made."""

    @property
    def name(self) -> str:
        """As typed: `epulsar-placement`, in the module `epulsar_placement`."""

    @property
    def title(self) -> str: ...

    def report(self, table: pa.Table, out: Path) -> ExperimentReport:
        """Compute metrics and claims from the table alone; write figures into `out`."""


class Experiment(Reporting, Protocol):
    """What a module's `EXPERIMENT` offers. It must be picklable: a frozen dataclass without state is the usual form."""

    @property
    def default_runs(self) -> int: ...

    def settings(self, runs: int, **options: str) -> Sequence[Setting]:
        """One picklable mapping per task, each with its own seed. Options come from `--set key=value`."""

    def run(self, setting: Setting) -> list[Row]:
        """Pure: rows depend on the setting alone. Executed inside a Spark task."""


class UnknownExperiment(LookupError):
    """No module of that name defines an experiment; the message lists those that do."""


def names() -> list[str]:
    """Every experiment there is, sorted."""
    found = []
    for module in pkgutil.iter_modules(package.__path__):
        experiment = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "EXPERIMENT", None)
        if experiment is not None:
            found.append(experiment.name)
    return sorted(found)


def find(name: str) -> Experiment:
    """By name; `epulsar-uav` and `epulsar_uav` are the same."""
    module = name.replace("-", "_")
    if module.isidentifier() and module in {found.name for found in pkgutil.iter_modules(package.__path__)}:
        experiment = getattr(importlib.import_module(f"{package.__name__}.{module}"), "EXPERIMENT", None)
        if experiment is not None:
            return experiment  # type: ignore[no-any-return]
    raise UnknownExperiment(f"there is no experiment {name!r}; there are: {', '.join(names())}")


@contextmanager
def spark_context() -> Iterator[SparkContext]:
    """A Spark of our own for sweeps: all local cores, small driver, no UI. A running session is used and left alone."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running.sparkContext
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[*]")
        .appName("tocsin experiment")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        # A task is one core of work: numerical libraries must not start threads of their own on top.
        .config("spark.executorEnv.OMP_NUM_THREADS", "1")
        .config("spark.executorEnv.OPENBLAS_NUM_THREADS", "1")
        .config("spark.executorEnv.NUMBA_NUM_THREADS", "1")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session.sparkContext
    finally:
        session.stop()


def run_on_spark(
    experiment: Experiment, settings: Sequence[Setting], spark: SparkContext, progress: Progress | None = None
) -> pa.Table:
    """One task per setting (several settings a task beyond TASKS_AT_MOST); rows in the order of the settings."""
    tasks = min(len(settings), TASKS_AT_MOST)
    numbered = spark.parallelize(list(enumerate(settings)), numSlices=max(tasks, 1))
    work = numbered.map(lambda item: (item[0], experiment.run(item[1])))
    answers = _collect_with_progress(spark, work, tasks, progress)
    return table_of([row for _, rows in sorted(answers, key=lambda answer: answer[0]) for row in rows])


def run_here(experiment: Experiment, settings: Sequence[Setting], progress: Progress | None = None) -> pa.Table:
    """The same table without Spark, one setting after another: for tests and for a debugger."""
    rows: list[Row] = []
    for done, setting in enumerate(settings, start=1):
        rows += experiment.run(setting)
        if progress is not None:
            progress(done, len(settings))
    return table_of(rows)


def _collect_with_progress(spark: SparkContext, work: Any, tasks: int, progress: Progress | None) -> list[Any]:
    """Spark blocks the thread that collects, so a second one collects while this one watches the tasks."""
    from pyspark import InheritableThread

    answers: list[Any] = []
    failures: list[BaseException] = []
    group = f"tocsin-experiment-{id(work)}"

    def collect() -> None:
        try:
            spark.setJobGroup(group, "tocsin experiment", interruptOnCancel=True)
            answers.extend(work.collect())
        except BaseException as error:
            failures.append(error)

    thread = InheritableThread(target=collect, daemon=True)

    def watch() -> None:
        done = sum(
            stage.numCompletedTasks
            for job in spark.statusTracker().getJobIdsForGroup(group)
            if (found := spark.statusTracker().getJobInfo(job)) is not None
            for stage_id in found.stageIds
            if (stage := spark.statusTracker().getStageInfo(stage_id)) is not None
        )
        if progress is not None:
            progress(min(done, tasks), tasks)

    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            watch()
    except KeyboardInterrupt:
        spark.cancelJobGroup(group)
        raise
    if failures:
        raise failures[0]
    if progress is not None:
        progress(tasks, tasks)
    return answers


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows may have different keys: what a row does not say is null."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return pa.table({name: [plain(row.get(name)) for row in rows] for name in columns})


def finish(experiment: Reporting, runs: int, table: pa.Table, out: Path, command: str | None = None) -> dict[str, Any]:
    """Write the table, the figures and the report; returns what `--json` prints. `command` is what made it."""
    command = command or f"tocsin experiment {experiment.name} --runs {runs}"
    out.mkdir(parents=True, exist_ok=True)
    table_path = out / f"{experiment.name}.parquet"
    pq.write_table(table, table_path)
    report = experiment.report(table, out)
    page = out / f"{experiment.name}.md"
    page.write_text(render(experiment.title, command, report, report.files), encoding="utf-8")
    answer = {
        "experiment": experiment.name,
        "runs": runs,
        "metrics": plain(dict(report.metrics)),
        "claims": [
            {
                "id": claim.id,
                "source": claim.source,
                "seed_document": claim.seed_document,
                "ours": plain(claim.ours),
                "holds": claim.holds,
                **({"differs": claim.differs} if not claim.holds else {}),
            }
            for claim in report.claims
        ],
        "files": [str(path) for path in (table_path, *report.files, page)],
    }
    json.dumps(answer, allow_nan=False)  # an answer that cannot be printed is a fault of the experiment: fail here
    return answer


def run_experiment(
    experiment: Experiment,
    runs: int | None,
    out: Path,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """All of it: settings, Spark job, table, report."""
    runs = experiment.default_runs if runs is None else runs
    settings = experiment.settings(runs, **(options or {}))
    if not settings:
        raise ValueError(f"{experiment.name} has nothing to run with --runs {runs}")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with spark_context() as spark:
        table = run_on_spark(experiment, settings, spark, progress)
    return finish(experiment, runs, table, out)
