"""The errors that Spark raises, and their first line in plain words."""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Py4J translates most errors to Python's; a few arrive as Java errors."""

_CONDITION = re.compile(r"^\s*\[[A-Z0-9_.]+\]\s*")
"""`[UNRESOLVED_COLUMN.WITH_SUGGESTION]` before a message: a name for programs."""
_AFTER = re.compile(r"\s*(?:SQLSTATE: \w+|; line \d+|\(line \d+, pos \d+\)|== SQL).*$", re.DOTALL)
"""The code after a message, and positions in generated SQL."""
_CLASS = re.compile(r"\b(?:java|javax|scala|org|com|io)(?:\.[a-z_0-9]+)+\.([A-Z]\w*)(?:\$\w+)*:?")
"""A class of the JVM: only its own name says something."""


def is_alive(session: SparkSession) -> bool:
    """Whether the session's JVM answers."""
    try:
        jvm = session.sparkContext._jvm
        return jvm is not None and jvm.java.lang.System.nanoTime() is not None
    except Exception:
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
