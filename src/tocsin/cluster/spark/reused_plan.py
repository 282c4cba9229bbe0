"""Reuses the physical plan of a channel for small executions: the same Spark job again, over other records.

Spark parses, analyses, optimises and plans a query for every execution, although only the records differ. For a small
execution that costs far more than the query itself. `ReusedPlan` plans a channel once, over relations whose rows the
optimiser does not know and that lie in one partition each. Such a plan needs neither a shuffle nor a broadcast: it is
one task, and Spark reads the rows of its relations when that task starts. An execution puts its records into the
partitions and runs the task again.

Only `cluster.spark.execution` uses it, which keeps the ordinary way for everything else (docs/decisions/0010).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _load_from_socket

from tocsin.cluster.spark.errors import SPARK_ERRORS
from tocsin.cluster.spark.replaceable_relation import Java, ReplaceableRelation, changed_settings, elements

REUSED_BYTES = 8 << 20
"""The most bytes of all tables together: they travel to the task in every execution."""
_ASSUMED_BYTES = 1 << 20
"""The size that the planner assumes of a table, unless told another."""
_ONE_TASK: Mapping[str, str] = {
    "spark.sql.adaptive.enabled": "false",
    # No table is small enough to broadcast, and every table is small enough to hash: Spark hashes the smaller side of a
    # join inside the task. It compares sizes with this threshold times the number of partitions of a shuffle.
    "spark.sql.autoBroadcastJoinThreshold": "1",
    "spark.sql.shuffle.partitions": str(2**31 - 1),
    "spark.sql.join.preferSortMergeJoin": "false",
    "spark.sql.shuffledHashJoinFactor": "1",
    "spark.sql.exchange.reuse": "false",
    # Above this number of groups, Spark sorts the rows of `collect_list` instead of hashing them.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
}
"""Settings of the session while it plans."""
_PROJECTIONS = "spark.sql.codegen.factoryMode"
"""How a task makes the projections that are not part of the plan's compiled code: keys of joins, groups, rows of Arrow
batches."""
INTERPRETED_ROWS = 4_000
"""Up to so many rows of all tables together, the task interprets these projections.

Otherwise every task writes the source of their code again, only to find it among the compiled ones: a channel with
`near` has long keys, and its source takes more time than a few thousand rows.
"""
_REFUSED_NODES = ("Broadcast", "ReusedExchange", "Subquery", "InMemory", "SortMergeJoin")
"""Parts of the names of nodes whose rows come from another job: they would stay those of the first execution. A merge
join would change the order of NEW records."""
_CLOCK = re.compile(
    r"\b(now|current_\w+|local\w*timestamp|curdate|unix_timestamp|to_unix_timestamp|today|tomorrow|yesterday|epoch)\b",
    re.IGNORECASE,
)
"""Words by which a query may ask for the present time, also inside a text ('today'). The optimiser replaces them by the
time of planning, so such a query must be planned anew for each execution."""


def depends_on_clock(query: str) -> bool:
    """True if the query may contain the present time. May be true for a query that does not."""
    return _CLOCK.search(query) is not None


class NotReusable(Exception):
    """The plan is more than one task, for example because of a subquery inside an expression."""


Planner = Callable[[Mapping[str, DataFrame]], DataFrame]
"""Plans the query over these frames, by relation; returns the frame of its results."""


@dataclass(frozen=True, slots=True)
class ReusedPlan:
    """One execution at a time."""

    schema: pa.Schema
    relations: Mapping[str, ReplaceableRelation]
    batches: Java
    """The RDD of the results as Arrow batches."""
    _settings: Java
    """The session's settings as Java properties: some expressions read them inside the task."""
    _context: Java
    _collect_and_serve: Java
    """A function of Spark. Finding it takes two calls to the JVM."""

    @classmethod
    def of(
        cls,
        session: SparkSession,
        tables: Mapping[str, pa.Table],
        plan: Planner,
        assumed_bytes: Mapping[str, int] | None = None,
    ) -> ReusedPlan:
        """Plan a query over the columns of these tables. Raise NotReusable if the plan is more than one task.

        `assumed_bytes` are sizes for the planner: of two sides of a join, the task hashes the smaller.
        """
        assumed = assumed_bytes or {}
        relations = {
            name: ReplaceableRelation.like(session, table, assumed.get(name, _ASSUMED_BYTES))
            for name, table in tables.items()
        }
        jvm: Any = session.sparkContext._jvm
        settings = jvm.java.util.Properties()
        settings.putAll(session.conf.getAll)
        with changed_settings(session, _ONE_TASK):
            results = plan({name: relation.frame for name, relation in relations.items()})
            planned = results._jdf.queryExecution().executedPlan()
            # Nodes of a plan take their settings from the session of this thread in the JVM.
            jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
            batches = results._jdf.toArrowBatchRdd(_without_shuffles(planned))
        _check_one_task(batches)
        schema = to_arrow_schema(results.schema, timezone="UTC")
        context: Any = session.sparkContext
        return cls(schema, relations, batches, settings, context._jsc.sc(), jvm.PythonRDD.collectAndServe)

    def fits(self, tables: Mapping[str, pa.Table]) -> bool:
        """True if the plan was made for tables with these columns."""
        return all(relation.fits(tables[name]) for name, relation in self.relations.items())

    def run(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """The results of the query over these tables, by relation."""
        self.set_tables(tables)
        parts = self.collect(self.batches, rows=sum(tables[name].num_rows for name in self.relations))
        self.release_tables()
        return self.results_of(parts)

    def set_tables(self, tables: Mapping[str, pa.Table]) -> None:
        """Let jobs that start from now on read these tables, by relation."""
        for name, relation in self.relations.items():
            relation.replace(tables[name])

    def release_tables(self) -> None:
        """Drop the large tables, after the job that has read them."""
        for relation in self.relations.values():
            relation.release()

    def collect(self, batches: Java, rows: int) -> list[bytes]:
        """The elements of an RDD of bytes, in order, with the settings of this plan's session. It reads `rows` rows."""
        properties = self._context.getLocalProperties()
        properties.putAll(self._settings)
        if rows <= INTERPRETED_ROWS:
            properties.setProperty(_PROJECTIONS, "NO_CODEGEN")
        try:
            served = self._collect_and_serve(batches)
        finally:
            properties.remove(_PROJECTIONS)  # later jobs of this thread may be large
        with _load_from_socket(served, NoOpSerializer()) as parts:
            return list(parts)

    def results_of(self, parts: Sequence[bytes]) -> pa.Table:
        """The results in these elements of `batches`."""
        read = [pa.ipc.read_record_batch(pa.py_buffer(part), self.schema) for part in parts]
        return pa.Table.from_batches(read, self.schema)


class PlanCache:
    """The reused plan of one channel. It is made at the first small execution, and again when the key changes."""

    def __init__(self, session: SparkSession, query: str) -> None:
        """`query` is the channel's own text."""
        self._session = session
        self._key: str | None = None
        self._plan: ReusedPlan | None = None
        self._text: tuple[object, str] | None = None
        self.usable = not depends_on_clock(query)
        """False if every execution of the channel must be planned anew."""
        self.reused = 0
        """The number of executions with a plan that an earlier one had made."""

    def text(self, depends_on: object, make: Callable[[], str]) -> str:
        """The text of the query. It is made again when what it depends on changes."""
        if self._text is None or self._text[0] != depends_on:
            self._text = depends_on, make()
        return self._text[1]

    def ready(self, key: str, tables: Mapping[str, pa.Table]) -> ReusedPlan | None:
        """The plan if an earlier execution has made it for this key and these columns."""
        is_ready = self.usable and self._plan is not None and self._key == key and self._plan.fits(tables)
        return self._plan if is_ready else None

    def run(
        self,
        key: str,
        tables: Mapping[str, pa.Table],
        plan: Planner,
        assumed_bytes: Mapping[str, int] | None = None,
    ) -> pa.Table | None:
        """The results of the query that `plan` plans; None if the caller must run it in the ordinary way.

        `key` has everything that decides the plan: the text of the query, and its limit of rows. `assumed_bytes`: see
        `ReusedPlan.of`.

        A record or a value that makes the query fail does so in the ordinary way too, which reports it.
        """
        try:
            if self._plan is None or self._key != key or not self._plan.fits(tables):
                self._plan, self._key = ReusedPlan.of(self._session, tables, plan, assumed_bytes), key
                return self._plan.run(tables)
            results = self._plan.run(tables)
        except NotReusable:
            self.usable = False
        except (*SPARK_ERRORS, Py4JError):
            self._plan = None  # the JVM may have died
        else:
            self.reused += 1
            return results
        return None


def _without_shuffles(plan: Java) -> Java:
    """The plan with its parts joined directly. `_check_one_task` checks that each part is one partition."""
    kind = plan.getClass().getSimpleName()
    if any(part in kind for part in _REFUSED_NODES):
        raise NotReusable(kind)
    if not plan.subqueries().isEmpty():
        raise NotReusable("a subquery inside an expression")
    before = list(elements(plan.children()))
    after = [_without_shuffles(child) for child in before]
    if kind == "ShuffleExchangeExec":
        return after[0]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return plan
    children = plan.children().take(0)
    for child in reversed(after):
        children = children.prepended(child)
    return plan.withNewChildren(children)


def _check_one_task(rows: Java) -> None:
    """Raise NotReusable if a job over this RDD has more than one task: another task would run only once."""
    if rows.getNumPartitions() != 1:
        raise NotReusable("several partitions")
    for dependency in elements(rows.dependencies()):
        if dependency.getClass().getSimpleName() == "ShuffleDependency":
            raise NotReusable("a shuffle")
        _check_one_task(dependency.rdd())
