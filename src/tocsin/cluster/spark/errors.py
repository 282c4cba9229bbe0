"""The errors that Spark raises, and their first line."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Py4J translates most errors to Python's; a few arrive as Java errors."""


def is_alive(session: SparkSession) -> bool:
    """Whether the session's JVM answers."""
    try:
        jvm = session.sparkContext._jvm
        return jvm is not None and jvm.java.lang.System.nanoTime() is not None
    except Exception:
        return False


def first_line(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage() or error.java_exception.toString())
    elif isinstance(error, PySparkException) and error.getCondition():
        message = error.getMessage() or str(error)
    else:
        message = str(error)
    return message.partition("\n")[0]
