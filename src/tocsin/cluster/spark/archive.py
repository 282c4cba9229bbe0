"""An archive of the classes that Spark loads. With it a data cluster is ready in half the time after a start.

On every start a JVM reads and verifies some twenty thousand classes before the first execution is done. Java maps them
from a file instead, if an earlier JVM with the same jars wrote one (class data sharing). `tocsin prepare` makes the
file once. After an update of Java or Spark the file does not fit, and the JVM starts without it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tocsin.wire.errors import Code, TocsinError

OPTIONS = "spark.driver.defaultJavaOptions"
"""Default options: those that a user sets for the driver come after them."""
_QUIET = "-Xlog:disable -Xlog:all={level}:stderr"
"""Keeps Java's messages about archives from the standard output, which belongs to Tocsin."""
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM with a short run: the optimising compiler and the parallel collector would not pay off."""
_EXIT_S = 300.0


def archive_file() -> Path:
    return Path(sys.prefix, "share", "tocsin", f"spark-{pyspark.__version__}.jsa")


def java_options() -> dict[str, str]:
    """The options that make a session's JVM use the archive. No options for the user's own Spark: its jars differ."""
    file = archive_file()
    if "SPARK_HOME" in os.environ or not file.exists():
        return {}
    return {OPTIONS: f'"-XX:SharedArchiveFile={file}" {_QUIET.format(level="warning")}'}


def make_archive(session: Callable[[dict[str, str]], SparkSession], use: Callable[[SparkSession], None]) -> Path:
    """Make the archive from the classes that `use` loads in a new `session`. Ends the session's JVM."""
    file = archive_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    # A half-written file would crash the JVMs that map it.
    part = file.with_suffix(f".{os.getpid()}")
    try:
        started = session({OPTIONS: f'"-XX:ArchiveClassesAtExit={part}" {_SHORT} {_QUIET.format(level="error")}'})
        try:
            use(started)
        finally:
            _end(started)
        if not part.exists():
            raise TocsinError(Code.NOT_READY, "this Java left no archive of its classes; OpenJDK 17 and newer do")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return file


def _end(session: SparkSession) -> None:
    """End the JVM and wait: Java writes the archive when it exits, and exits when its input is closed."""
    gateway = SparkContext._gateway
    session.stop()
    assert gateway is not None
    gateway.shutdown()
    java = gateway.proc
    java.stdin.close()
    java.wait(_EXIT_S)
