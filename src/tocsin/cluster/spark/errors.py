"""The errors that Spark raises, and their first line in plain words."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from contextlib import suppress

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Py4J translates most errors to Python's; a few arrive as Java errors."""

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILLED = frozenset(code for number in _FROM_OUTSIDE for code in (-number, 128 + number))
"""Exit codes of a JVM that such a signal ended, at once or after its shutdown hooks."""
_FATAL = re.compile(r"\b(?:OutOfMemory|StackOverflow|VirtualMachine|Internal|Linkage|NoClassDefFound)Error\b")
"""Errors after which Spark ends its JVM."""
DYING_S = 2.0
"""How long a JVM may go on answering after such an error."""
_CONDITION = re.compile(r"^\s*\[[A-Z0-9_.]+\]\s*")
"""`[UNRESOLVED_COLUMN.WITH_SUGGESTION]` before a message: a name for programs."""
_AFTER = re.compile(r"\s*(?:SQLSTATE: \w+|; line \d+|\(line \d+, pos \d+\)|== SQL).*$", re.DOTALL)
"""The code after a message, and positions in generated SQL."""
_CLASS = re.compile(r"\b(?:java|javax|scala|org|com|io)(?:\.[a-z_0-9]+)+\.([A-Z]\w*)(?:\$\w+)*:?")
"""A class of the JVM: only its own name says something."""


def is_alive(session: SparkSession) -> bool:
    """Whether the session's JVM answers and can run jobs."""
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def has_died(session: SparkSession, reason: str) -> bool:
    """True if Spark is not alive after an error, whose text is `reason`.

    After a fatal error the JVM answers for a moment while it ends. It does not count as alive because of that.
    """
    until_s = time.monotonic() + (DYING_S if _FATAL.search(reason) else 0.0)
    while is_alive(session):
        if time.monotonic() >= until_s:
            return False
        time.sleep(0.05)
    return True


def ended_by_itself(session: SparkSession, within_s: float) -> bool:
    """True if Spark, which is not alive any more, has crashed or given up; waits `within_s` for the end of its JVM.

    False if a signal from outside ended the JVM, if it does not end, or if another process started it.
    """
    jvm: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
    if jvm is None:
        return False
    with suppress(Exception):  # no answer: the JVM has ended or is frozen
        if session.sparkContext._jsc.sc().isStopped():
            return True
    try:
        return jvm.wait(within_s) not in _KILLED
    except subprocess.TimeoutExpired:
        return False


def first_line(error: Exception) -> str:
    """The first line of Spark's message, without names of conditions and packages, codes and positions."""
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage() or error.java_exception.toString())
    elif isinstance(error, PySparkException) and error.getCondition():
        message = error.getMessage() or str(error)
    else:
        message = str(error)
    plain = _CLASS.sub(r"\1", _AFTER.sub("", _CONDITION.sub("", message.strip())))
    return plain.partition("\n")[0].strip() or "Spark gave no reason"
