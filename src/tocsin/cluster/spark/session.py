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
from tocsin.cluster.sql.allowed_functions import REMOVED_FUNCTIONS
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
    # A batch of wide rows must fit in the memory of the driver and of a Python worker.
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    # A hash join of any size takes at least one page, by default up to 64 MiB: several of those a second keep the
    # garbage collector busy on a core of its own.
    "spark.buffer.pageSize": "256k",
    # Spark compiles the generated code of a plan again when this cache has dropped it. A channel has two or three
    # entries, of about 50 KB each; the default is 100 entries for all channels.
    "spark.sql.codegen.cache.maxEntries": "4000",
    # Channels take turns instead of queueing behind the longest: each has a pool of its own (`time_limit`).
    "spark.scheduler.mode": "FAIR",
    # The catalog names every file, so a listing job is never worth its start.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.parquet.mergeSchema": "false",
    # A data source in Python may skip row groups (`file_source`).
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.cleaner.periodicGC.interval": "10min",
    "spark.log.level": "ERROR",
}


GUARDS: Mapping[str, str] = {
    # `FROM parquet.`/any/file`` would read a file of the machine.
    "spark.sql.runSQLOnFiles": "false",
    # `${env:NAME}` in a query would become a variable of the environment, before Spark parses the query.
    "spark.sql.variable.substitute": "false",
    # The check of a query comes between parsing and analysis: parsing evaluates nothing.
    "spark.sql.parser.eagerEvalOfUnresolvedInlineTable": "false",
    # `cluster.sql.lexing` and Spark must read quotes in the same way.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
}
"""Settings on which the check of channel queries relies. An administrator's settings do not override them."""


def make_session(master: str = "local[*]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session on `master`. `settings` override Tocsin's own, except GUARDS."""
    require_java()
    # Spark raises its errors as well; the caller reports them, and a log line with the stack would repeat them.
    for repeats in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(repeats).setLevel(logging.CRITICAL)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    # Workers must be this interpreter: they import pyarrow and this package.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", interpreter())
    os.environ.setdefault("PYSPARK_PYTHON", interpreter() if master.startswith("local") else sys.executable)
    builder = SparkSession.builder.master(master)
    ours = {**SETTINGS, **java_options(), **network_settings(master), "spark.driver.memory": _driver_memory()}
    for name, value in {**ours, **(settings or {}), **GUARDS}.items():
        builder = builder.config(name, value)
    if not master.startswith("local"):
        builder = builder.config("spark.submit.pyFiles", str(_package_archive()))
    session = builder.getOrCreate()
    _remove_functions(session)
    return session


def _remove_functions(session: SparkSession) -> None:
    """Make Spark forget functions that run code or name files, in every session of this JVM."""
    jvm: Any = session._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst
    registries = (catalyst.analysis.FunctionRegistry, catalyst.analysis.TableFunctionRegistry)
    for name in REMOVED_FUNCTIONS:
        for registry in registries:
            registry.builtin().dropFunction(catalyst.FunctionIdentifier(name))


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """False for Py4J's lines on the root logger: a stack for every call that a dead JVM does not answer.

    Py4J raises the same error to the caller, which reports it.
    """
    return record.module != "java_gateway"


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
