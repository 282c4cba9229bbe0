"""Runs an experiment as one Spark job and writes its table, figures and report.

An experiment is a module of this folder that defines `EXPERIMENT`; there is no list of them. The runner gets its
settings, runs each setting in a Spark task, puts the rows in the order of the settings (so that scheduling does not
affect the result), and passes the table to its report. Used by `tocsin experiment` and by tests. No other module of the
folder uses Spark.
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
from tocsin.experiments.report import ExperimentReport, as_json, plain, render

if TYPE_CHECKING:
    from pyspark import SparkContext

Setting = Mapping[str, Any]
Row = dict[str, Any]
Progress = Callable[[int, int], None]
"""Called with (finished tasks, all tasks)."""

TASKS_AT_MOST = 256
"""With more settings than this, a task runs several: starting a task takes some 10 ms."""
_POLL_S = 0.2


class Reporting(Protocol):
    """Makes a report from a table of runs."""

    @property
    def name(self) -> str:
        """The name on the command line: `epulsar-placement` for the module `epulsar_placement`."""

    @property
    def title(self) -> str: ...

    def report(self, table: pa.Table, out: Path) -> ExperimentReport:
        """Compute metrics and claims from the table alone; write figures into `out`."""


class Experiment(Reporting, Protocol):
    """The interface of a module's `EXPERIMENT`. It must be picklable; usually it is a frozen dataclass without
    state."""

    @property
    def default_runs(self) -> int: ...

    def settings(self, runs: int, **options: str) -> Sequence[Setting]:
        """One picklable mapping per run, with its own seed. Options come from `--set key=value`. Raises ValueError."""

    def run(self, setting: Setting) -> list[Row]:
        """Run one setting and return its rows. Pure: rows depend on the setting alone. Runs inside a Spark task."""


class UnknownExperiment(LookupError):
    """No module of that name defines an experiment; the message lists the experiments."""


def names() -> list[str]:
    """The names of all experiments, sorted."""
    experiments = (_experiment_in(module.name) for module in pkgutil.iter_modules(package.__path__))
    return sorted(experiment.name for experiment in experiments if experiment is not None)


def find(name: str) -> Experiment:
    """The experiment of this name; dashes and underscores are equivalent. Raises UnknownExperiment."""
    module = name.replace("-", "_")
    if module in {existing.name for existing in pkgutil.iter_modules(package.__path__)}:
        experiment = _experiment_in(module)
        if experiment is not None:
            return experiment
    raise UnknownExperiment(f"there is no experiment {name!r}; there are: {', '.join(names())}")


def _experiment_in(module: str) -> Experiment | None:
    return getattr(importlib.import_module(f"{package.__name__}.{module}"), "EXPERIMENT", None)


@contextmanager
def spark_context() -> Iterator[SparkContext]:
    """A Spark session for sweeps: all local cores, small driver, no UI. A session that is running is used and kept."""
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
        # A task has one core: numerical libraries must not start threads of their own.
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
    """Run each setting in a task (several per task beyond TASKS_AT_MOST); rows are in the order of the settings."""
    tasks = min(len(settings), TASKS_AT_MOST)
    numbered = spark.parallelize(list(enumerate(settings)), numSlices=max(tasks, 1))
    work = numbered.map(lambda item: (item[0], experiment.run(item[1])))
    results = _collect_with_progress(spark, work, tasks, progress)
    return table_of([row for _, rows in sorted(results, key=lambda result: result[0]) for row in rows])


def run_here(experiment: Experiment, settings: Sequence[Setting], progress: Progress | None = None) -> pa.Table:
    """The same table without Spark, one setting after another; for tests and debugging."""
    rows: list[Row] = []
    for done, setting in enumerate(settings, start=1):
        rows += experiment.run(setting)
        if progress is not None:
            progress(done, len(settings))
    return table_of(rows)


def _collect_with_progress(spark: SparkContext, work: Any, tasks: int, progress: Progress | None) -> list[Any]:
    """`collect` blocks its thread, so a second thread collects while this one reports the progress of the tasks."""
    from pyspark import InheritableThread

    results: list[Any] = []
    failures: list[BaseException] = []
    group = f"tocsin-experiment-{id(work)}"

    def collect() -> None:
        try:
            spark.setJobGroup(group, "tocsin experiment", interruptOnCancel=True)
            results.extend(work.collect())
        except BaseException as error:
            failures.append(error)

    thread = InheritableThread(target=collect, daemon=True)

    def report_progress() -> None:
        done = sum(
            stage.numCompletedTasks
            for job in spark.statusTracker().getJobIdsForGroup(group)
            if (info := spark.statusTracker().getJobInfo(job)) is not None
            for stage_id in info.stageIds
            if (stage := spark.statusTracker().getStageInfo(stage_id)) is not None
        )
        if progress is not None:
            progress(min(done, tasks), tasks)

    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            report_progress()
    except KeyboardInterrupt:
        spark.cancelJobGroup(group)
        raise
    if failures:
        raise failures[0]
    if progress is not None:
        progress(tasks, tasks)
    return results


def table_of(rows: Sequence[Row]) -> pa.Table:
    """A table of rows with different keys: missing values are null."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return pa.table({name: [plain(row.get(name)) for row in rows] for name in columns})


def finish(experiment: Reporting, runs: int, table: pa.Table, out: Path, command: str | None = None) -> dict[str, Any]:
    """Write the table, the figures and the page; returns the object that `--json` prints.

    `command` is the command line that made the table, for the page.
    """
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
        "claims": [as_json(claim) for claim in report.claims],
        "inputs": [as_json(claim) for claim in report.inputs],
        "files": [str(path) for path in (table_path, *report.files, page)],
    }
    json.dumps(answer, allow_nan=False)  # fail here if the experiment made values that JSON cannot have
    return answer


def run_experiment(
    experiment: Experiment,
    runs: int | None,
    out: Path,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Settings, Spark job, table and report; returns the object that `--json` prints. Raises ValueError without
    settings."""
    runs = experiment.default_runs if runs is None else runs
    settings = experiment.settings(runs, **(options or {}))
    if not settings:
        raise ValueError(f"{experiment.name} has no settings for --runs {runs}")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    with spark_context() as spark:
        table = run_on_spark(experiment, settings, spark, progress)
    return finish(experiment, runs, table, out)
