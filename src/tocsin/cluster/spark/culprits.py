"""Finds new subscriptions whose values make a channel's query fail: they must not stop the channel for the others.

A pattern that is no regular expression, a zone that does not exist, a divisor of zero: Spark fails only when it runs
the query, and one job runs it for all subscriptions. A record can make the query fail as well, and then no subscription
is at fault. So this search suspects only subscriptions that have not taken part in an execution yet.
`cluster.failures` goes on when it finds none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import functions as F

from tocsin.cluster.spark.errors import SPARK_ERRORS, first_line
from tocsin.cluster.spark.execution import DatasetContents, PreparedChannel, results_frame
from tocsin.cluster.spark.subscribers import SubscriptionFrames
from tocsin.cluster.spark.time_limit import TimeLimit
from tocsin.cluster.sql.query_sql import SUBSCRIPTIONS_VIEW
from tocsin.cluster.sql.result_columns import SUBSCRIPTION

MOST = 50
"""The most culprits that one search returns; the next failing execution searches for the others."""


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
            results = results_frame(prepared.views, prepared.query, contents, self._subscribers.radius_levels)
            results.write.format("noop").mode("overwrite").save()
        except SPARK_ERRORS as error:
            if self._limit is not None:
                self._limit.check()
            return first_line(error)
        return None


def culprits(tried: Sequence[int], untried: Sequence[int], fails: Callable[[int, int], str | None]) -> dict[int, str]:
    """The numbers in `untried` that fail, with the reason, found by bisection. Pure.

    Both sequences are sorted, and every number in `untried` is above those in `tried`. `fails` runs the query for all
    numbers from one to another and returns the reason, or None if it succeeds.

    The result is empty if the tried subscriptions fail too, or if every untried one fails alone: then the query, a
    record or the machine is at fault.
    """
    if not untried or (tried and fails(tried[0], tried[-1]) is not None):
        return {}
    samples = {untried[0], untried[len(untried) // 2], untried[-1]}
    if not tried and all(fails(number, number) for number in samples):
        return {}
    reasons: dict[int, str] = {}
    pending = [(0, len(untried))]
    while pending and len(reasons) < MOST:
        start, end = pending.pop()
        reason = fails(untried[start], untried[end - 1])
        if reason is None:
            continue
        if end - start > 1:
            middle = (start + end) // 2
            pending += [(middle, end), (start, middle)]
        elif fails(untried[start], untried[start]) is not None:  # it failed twice, so not by accident
            reasons[untried[start]] = reason
    return reasons
