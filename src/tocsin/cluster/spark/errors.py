"""What Spark raises when it refuses something, and the line of it that a person needs."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""Most refusals are translated for Python; a few come as Java's own."""


def first_line(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):
        told = str(error.java_exception.getMessage() or error.java_exception.toString())
    elif isinstance(error, PySparkException) and error.getCondition():
        told = error.getMessage() or str(error)
    else:
        told = str(error)
    return told.partition("\n")[0]
