"""Runs a channel's query on trial, to find the values that make it fail."""

from __future__ import annotations

from pyspark.sql import functions as F

from tocsin.cluster.spark.errors import SPARK_ERRORS, first_line
from tocsin.cluster.spark.preparing import DatasetContents, PreparedChannel, results_frame
from tocsin.cluster.spark.subscribers import SubscriptionFrames
from tocsin.cluster.spark.time_limit import TimeLimit
from tocsin.cluster.sql.query_sql import SUBSCRIPTIONS_VIEW
from tocsin.cluster.sql.result_columns import SUBSCRIPTION


class Trial:
    """Runs a channel's query for some subscriptions and some records, and discards the results."""

    def __init__(
        self, prepared: PreparedChannel, subscribers: SubscriptionFrames, limit: TimeLimit | None = None
    ) -> None:
        self._prepared = prepared
        self._subscribers = subscribers
        self._limit = limit

    def fails(self, first: int, last: int, contents: DatasetContents) -> str | None:
        """Spark's reason if the query fails for the subscriptions from one number to another; None if it succeeds.

        Raises if the time of the execution is over: a job that was cancelled says nothing about its values.
        """
        prepared = self._prepared
        frame = self._subscribers.frame(prepared.session)
        prepared.views.show(SUBSCRIPTIONS_VIEW, frame.where(F.col(SUBSCRIPTION).between(first, last)))
        try:
            results = results_frame(prepared, contents, self._subscribers.radius_levels)
            results.write.format("noop").mode("overwrite").save()
        except SPARK_ERRORS as error:
            if self._limit is not None:
                self._limit.check()
            return first_line(error)
        return None
