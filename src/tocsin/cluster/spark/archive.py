"""An archive of the classes that Spark loads: with it a data cluster answers in half the time after a start.

A JVM reads and verifies some twenty thousand classes before the first execution is done, on every start, also after a
crash. Java maps them from a file instead if an earlier JVM with the same jars has left one (class data sharing). The
file is made once, by `tocsin prepare`; a JVM that it does not fit, after an update of Java or Spark, does without.
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
"""Go before the ones a user may have set for the driver."""
_QUIET = "-Xlog:disable -Xlog:all={level}:stderr"
"""Java would tell of archives on the standard output, which is not its own here."""
_SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that ends before better code and another collector would have paid off."""
_EXIT_S = 300.0


def archive_file() -> Path:
    return Path(sys.prefix, "share", "tocsin", f"spark-{pyspark.__version__}.jsa")


def java_options() -> dict[str, str]:
    """What a session's JVM is told. A Spark of the user's own has other jars."""
    file = archive_file()
    if "SPARK_HOME" in os.environ or not file.exists():
        return {}
    return {OPTIONS: f'"-XX:SharedArchiveFile={file}" {_QUIET.format(level="warning")}'}


def make_archive(session: Callable[[dict[str, str]], SparkSession], use: Callable[[SparkSession], None]) -> Path:
    """Start a `session` with the settings given to it, `use` it, and keep the classes that took. Ends its JVM."""
    file = archive_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    # A file half written would crash the JVMs that map it.
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
    """Java writes the archive while it exits, and it exits when nobody speaks to it any more."""
    gateway = SparkContext._gateway
    session.stop()
    assert gateway is not None
    gateway.shutdown()
    java = gateway.proc
    java.stdin.close()
    java.wait(_EXIT_S)
