"""Limits the time of one execution of a channel, and cancels its Spark jobs when the time is over.

A query that compares every pair of two large datasets can run for days; meanwhile the channel would be silent and
other channels slow. All jobs of an execution carry a tag of their own, so that cancelling them stops nothing else. The
tag also names the channel in Spark's pages. Jobs are cancelled, not threads: planning in the driver is not interrupted,
and the jobs that follow it are.

Not a watch over Spark itself: a JVM that does not answer needs another.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tocsin.cluster.spark.errors import SPARK_ERRORS
from tocsin.wire.errors import Code, TocsinError

_AGAIN_S = 0.5
"""Pause between two cancellations: a job that starts after the first one is cancelled by the next."""

_GONE = (*SPARK_ERRORS, Py4JError, OSError)
"""Errors of calls to a JVM that has ended: the execution fails with its own error."""


class TimeOver(TocsinError):
    """An execution that took longer than its limit."""

    def __init__(self, channel: str, limit_s: float) -> None:
        super().__init__(
            Code.TOO_LARGE,
            f"channel {channel}: an execution took longer than {limit_s:g} s and was cancelled. Make the query "
            "cheaper, for example with an equality to join on, or ask an administrator to raise the setting "
            "execution_s. The next execution covers the same records",
        )


class TimeLimit:
    """The time limit of one execution."""

    def __init__(self, channel: str, limit_s: float) -> None:
        self._channel = channel
        self._limit_s = limit_s
        self.is_over = False

    def check(self) -> None:
        """Raise if the time is over."""
        if self.is_over:
            raise TimeOver(self._channel, self._limit_s)


@contextmanager
def time_limit(session: SparkSession, channel: str, limit_s: float) -> Iterator[TimeLimit]:
    """A block whose Spark jobs, started by this thread, are cancelled after `limit_s`. It then raises TimeOver.

    The jobs of each channel get an even share of the cores, however many tasks another channel has waiting.
    """
    context = session.sparkContext
    tag = f"tocsin-{channel}-{uuid.uuid4().hex}"
    limit, ended = TimeLimit(channel, limit_s), threading.Event()

    def watch() -> None:
        if ended.wait(limit_s):
            return
        limit.is_over = True
        while not ended.is_set():
            with suppress(*_GONE):
                context.cancelJobsWithTag(tag)
            ended.wait(_AGAIN_S)

    context.setLocalProperty("spark.scheduler.pool", channel)
    context.addJobTag(tag)
    threading.Thread(target=watch, name=f"limit-{channel}", daemon=True).start()
    try:
        yield limit
    except SPARK_ERRORS:
        limit.check()
        raise
    finally:
        ended.set()
        with suppress(*_GONE):
            context.removeJobTag(tag)
