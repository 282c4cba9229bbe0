"""Bounds the time of matching patterns that a channel takes from subscriptions or records.

`kind RLIKE :pattern` lets a subscriber choose a regular expression. Java's regular expressions may take years for a
short text, and cancelling the job does not end them. So a plan matches with `java/TocsinPatterns.java` wherever the
pattern is not a constant of the query. A constant is the author's, and Spark matches it as always. Functions that have
no bounded form refuse a pattern that is not a constant.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tocsin.cluster.spark.java_classes import java_class, new_object
from tocsin.cluster.spark.query_check import QueryRefused


def with_bounded_patterns(session: SparkSession, frame: DataFrame) -> DataFrame:
    """The frame with bounded patterns; the same object if its plan has no pattern that is not a constant.

    Raises if a pattern cannot be bounded.
    """
    jvm: Any = session._jvm
    analysed = frame._jdf.queryExecution().analyzed()
    matcher = java_class(session, "TocsinPatterns")
    guard = new_object(session, java_class(session, "TocsinPatternGuard"), (matcher.getClass(), matcher))
    plan = guard.guard(analysed)
    if unbounded := guard.unbounded().split():
        raise QueryRefused(
            f"{unbounded[0]}: its pattern must be a constant, because a subscriber's or publisher's pattern could make "
            "the query run for ever. RLIKE, LIKE and ILIKE take any pattern, in bounded time",
        )
    if plan.fastEquals(analysed):
        return frame
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)
