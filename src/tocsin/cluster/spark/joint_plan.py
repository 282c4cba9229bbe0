"""Runs the reused plans of several channels as one Spark job with one task.

A job costs the driver and the JVM far more than a few records: Spark serialises the plan, schedules a stage and a task,
and reports both. `JointPlan` is the union of the RDDs of several plans, coalesced into one partition: its only task
runs one plan after the other. A mark of each plan follows its results. An error of one plan fails the job: the caller
then runs each plan by itself.

`cluster.joint_executions` decides which channels run together (docs/decisions/0019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tocsin.cluster.spark.replaceable_relation import Java
from tocsin.cluster.spark.reused_plan import ReusedPlan

_MARK = b"tocsin-end-of-plan-"


class MarksOutOfOrder(Exception):
    """The results do not end with the mark of their plan."""


@dataclass(frozen=True, slots=True)
class JointPlan:
    """One execution at a time."""

    plans: Sequence[ReusedPlan]
    _batches: Java

    @classmethod
    def of(cls, session: SparkSession, plans: Sequence[ReusedPlan]) -> JointPlan:
        """Join at least one plan."""
        jvm: Any = session.sparkContext._jvm
        context: Any = session.sparkContext._jsc
        parts = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        for place in reversed(range(len(plans))):
            mark = jvm.java.util.ArrayList()
            mark.add(_mark(place))
            parts = parts.prepended(context.parallelize(mark, 1).rdd()).prepended(plans[place].batches)
        tag = plans[0].batches.elementClassTag()
        union = jvm.org.apache.spark.rdd.UnionRDD(context.sc(), parts, tag)
        one_task = jvm.org.apache.spark.rdd.CoalescedRDD(union, 1, jvm.scala.Option.empty(), tag)
        return cls(tuple(plans), one_task)

    def run(self, tables: Sequence[Mapping[str, pa.Table]]) -> list[pa.Table]:
        """The results of each plan over its tables, by relation."""
        for plan, own in zip(self.plans, tables, strict=True):
            plan.set_tables(own)
        rows = max(
            sum(own[name].num_rows for name in plan.relations) for plan, own in zip(self.plans, tables, strict=True)
        )
        parts = iter(self.plans[0].collect(self._batches, rows))
        for plan in self.plans:
            plan.release_tables()
        return [plan.results_of(_until_mark(parts, place)) for place, plan in enumerate(self.plans)]


def _mark(place: int) -> bytearray:
    return bytearray(_MARK + b"%d" % place)


def _until_mark(parts: Any, place: int) -> list[bytes]:
    """The elements up to the mark of a plan."""
    found: list[bytes] = []
    for part in parts:
        if bytes(part[: len(_MARK)]) == _MARK:
            if bytes(part) == _mark(place):
                return found
            break
        found.append(part)
    raise MarksOutOfOrder(f"the mark of plan {place} is missing")
