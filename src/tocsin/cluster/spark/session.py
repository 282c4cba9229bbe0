"""The Spark session and its settings for many small, regular jobs."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import tocsin
from tocsin.cluster.spark.archive import java_options
from tocsin.cluster.spark.network import network_settings
from tocsin.cluster.spark.python import interpreter
from tocsin.wire.errors import Code, TocsinError

Session = SparkSession
"""The type of a session, for modules that must not import pyspark."""

SETTINGS: Mapping[str, str] = {
    "spark.app.name": "tocsin",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Bad values are refused on entry. In a query, a cast that fails must not stop a channel with thousands of users.
    "spark.sql.ansi.enabled": "false",
    # Executions are small and many: few partitions, and adaptive execution merges those that stay empty.
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # A hash join of any size takes at least one page, by default up to 64 MiB: several of those a second keep the
    # garbage collector busy on a core of its own.
    "spark.buffer.pageSize": "256k",
    # Channels take turns instead of queueing behind the longest.
    "spark.scheduler.mode": "FAIR",
    # The catalog names every file, so a listing job is never worth its start.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.parquet.mergeSchema": "false",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.cleaner.periodicGC.interval": "10min",
    "spark.log.level": "ERROR",
}


def make_session(master: str = "local[*]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session on `master`. `settings` override Tocsin's own."""
    require_java()
    # Spark raises its errors as well; the caller reports them, and a log line with the stack would repeat them.
    for repeats in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(repeats).setLevel(logging.CRITICAL)
    # Workers must be this interpreter: they import pyarrow and this package.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", interpreter())
    os.environ.setdefault("PYSPARK_PYTHON", interpreter() if master.startswith("local") else sys.executable)
    builder = SparkSession.builder.master(master)
    ours = {**SETTINGS, **java_options(), **network_settings(master), "spark.driver.memory": _driver_memory()}
    for name, value in {**ours, **(settings or {})}.items():
        builder = builder.config(name, value)
    if not master.startswith("local"):
        builder = builder.config("spark.submit.pyFiles", str(_package_archive()))
    return builder.getOrCreate()


def described(session: SparkSession) -> dict[str, Any]:
    """Facts about the session for an administrator. Only a few are known for a remote session."""
    facts: dict[str, Any] = {"version": session.version}
    try:
        context = session.sparkContext
        facts |= {
            "master": context.master,
            "application": context.applicationId,
            "parallelism": context.defaultParallelism,
            "ui": context.uiWebUrl,
            "jobs": len(context.statusTracker().getActiveJobsIds()),
        }
    except Exception:  # Spark Connect has no context, nor has a session that is stopping
        facts["master"] = "remote"
    return facts


def require_java() -> None:
    """Raise with advice if Java is missing or too old: Spark's own message is a stack trace."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home and Path(home, "bin", "java").exists() else shutil.which("java")
    advice = "install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at it"
    if java is None:
        raise TocsinError(Code.NOT_READY, f"Spark needs a Java runtime of version 17 or newer: {advice}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = answer.partition('version "')[2].partition(".")[0].partition('"')[0]
    if version.isdigit() and int(version) < 17:
        raise TocsinError(Code.NOT_READY, f"Spark needs Java 17 or newer, {java} is {version}: {advice}")


def _driver_memory() -> str:
    """A quarter of the machine, between 1 and 8 GiB: the rest is for Python, brokers and the page cache."""
    total_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{max(1, min(8, int(total_gib / 4)))}g"


def _package_archive() -> Path:
    """A zip of this package, for executors on other machines."""
    source = Path(tocsin.__file__).parent
    archive = Path(tempfile.mkdtemp(prefix="tocsin-")) / "tocsin.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(source.rglob("*.py")):
            target.write(path, Path("tocsin") / path.relative_to(source))
    return archive
