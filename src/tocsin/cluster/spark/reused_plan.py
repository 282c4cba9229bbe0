"""Reuses the physical plan of a channel for small executions, with new records in its leaves.

Spark parses, analyses, optimises and plans a query for every execution, although only the records differ. For a small
execution that costs more than the query itself. `ReusedPlan` plans a channel once over empty relations without known
rows, so that no rule of the optimiser can look at data. An execution then replaces the leaves of the physical plan by
tables in memory, copies the nodes above them and runs the result. Parts of the plan whose tables have not changed since
the last execution stay as they are, with the broadcasts they have made.

Only `cluster.spark.execution` uses it, which keeps the ordinary way for everything else (docs/decisions/0009).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _load_from_socket

from tocsin.cluster.spark.errors import SPARK_ERRORS

REUSED_BYTES = 8 << 20
"""The most bytes of all tables together. The plan broadcasts one side of every join, and Spark's limit is 10 MiB."""
_ASSUMED_BYTES = 1 << 20
"""The size that the planner assumes of a table, unless told another: small enough to broadcast."""
_CLOCK = re.compile(
    r"\b(now|current_\w+|local\w*timestamp|curdate|unix_timestamp|to_unix_timestamp|today|tomorrow|yesterday|epoch)\b",
    re.IGNORECASE,
)
"""Words by which a query may ask for the present time, also inside a text ('today'). The optimiser replaces them by the
time of planning, so such a query must be planned anew for each execution."""

_DEFAULT_SIZE = "spark.sql.defaultSizeInBytes"

Java = Any
"""An object in the JVM."""


def depends_on_clock(query: str) -> bool:
    """True if the query may contain the present time. May be true for a query that does not."""
    return _CLOCK.search(query) is not None


class NotReusable(Exception):
    """The plan has a part that cannot be copied, for example a subquery inside an expression."""


@dataclass(slots=True)
class _Node:
    template: Java
    children: tuple[int, ...]
    relation: str | None
    """The relation that this leaf reads; None for all other nodes."""
    relations: frozenset[str]
    """All relations below this node."""
    is_reference: bool = False
    """True for a node that repeats the rows of an exchange elsewhere in the plan, which is its only child here."""
    built: Java = None
    """The node of the last execution."""


@dataclass(slots=True)
class _Relation:
    """A named table of the query: a leaf of the plan whose rows change."""

    frame: DataFrame
    rdd_id: int
    table: pa.Table | None = None
    """The rows of the last execution."""
    scan: Java = None
    """The rows as a node of a physical plan."""


Planner = Callable[[Mapping[str, DataFrame]], DataFrame]
"""Plans the query over these frames, by relation; returns the frame of its results."""


@dataclass(slots=True)
class ReusedPlan:
    """One execution at a time."""

    session: SparkSession
    schema: pa.Schema
    _results: DataFrame
    _relations: dict[str, _Relation]
    _nodes: list[_Node] = field(default_factory=list)
    """Children come before their parents; the last node is the root."""
    _no_children: Java = None
    """Scala's empty list."""

    @classmethod
    def of(
        cls,
        session: SparkSession,
        tables: Mapping[str, pa.Table],
        plan: Planner,
        assumed_bytes: Mapping[str, int] | None = None,
    ) -> ReusedPlan:
        """Plan a query over the columns of these tables. Raise NotReusable if the plan cannot be copied.

        `assumed_bytes` are sizes for the planner: of two sides of a join, it broadcasts the smaller.
        """
        assumed = assumed_bytes or {}
        relations = {
            name: _empty_relation(session, table.schema, assumed.get(name, _ASSUMED_BYTES))
            for name, table in tables.items()
        }
        results = plan({name: relation.frame for name, relation in relations.items()})
        root = results._jdf.queryExecution().executedPlan()
        schema = to_arrow_schema(results.schema, timezone="UTC")
        made = cls(session, schema, results, relations)
        made._add(root, {relation.rdd_id: name for name, relation in relations.items()}, {})
        return made

    def run(self, tables: Mapping[str, pa.Table]) -> pa.Table:
        """The results of the query over these tables, by relation."""
        _activate(self.session)
        changed = {name for name, table in tables.items() if self._relations[name].table is not table}
        for name in changed:
            self._relations[name].scan = _scan(self.session, tables[name])
            self._relations[name].table = tables[name]
        for node in self._nodes:
            if node.built is None or node.relations & changed:
                node.built = self._build(node)
        batches = self._results._jdf.toArrowBatchRdd(self._nodes[-1].built)
        served = self.session.sparkContext._jvm.PythonRDD.collectAndServe(batches)  # type: ignore[union-attr]
        with _load_from_socket(served, NoOpSerializer()) as parts:
            read = [pa.ipc.read_record_batch(pa.py_buffer(part), self.schema) for part in parts]
        return pa.Table.from_batches(read, self.schema)

    def _build(self, node: _Node) -> Java:
        """This execution's copy of a node, over this execution's children."""
        if node.relation is not None:
            scan = self._relations[node.relation].scan
            return scan.copy(node.template.output(), scan.rows(), scan.stream(), _default(scan, 4))
        if not node.children or not node.relations:
            return node.template
        children = [self._nodes[index].built for index in node.children]
        if node.is_reference:
            return node.template.copy(node.template.output(), children[0])
        return node.template.withNewChildren(_scala_list(self._no_children, children))

    def _add(self, plan: Java, relation_of: Mapping[int, str], exchanges: dict[int, int]) -> int:
        """Add a plan to the nodes, children first, and return the index of its root."""
        if not plan.subqueries().isEmpty():
            raise NotReusable("a subquery inside an expression")
        kind = plan.getClass().getSimpleName()
        if kind == "ReusedExchangeExec":
            index = exchanges.get(plan.child().id())
            if index is None:
                raise NotReusable("a repeated exchange before its first use")
            return self._append(_Node(plan, (index,), None, self._nodes[index].relations, is_reference=True))
        children = tuple(self._add(child, relation_of, exchanges) for child in _each(plan.children()))
        if not children:
            self._no_children = plan.children()
        relation = relation_of.get(plan.rdd().id()) if kind == "RDDScanExec" else None
        below = frozenset({relation} if relation is not None else ()).union(
            *(self._nodes[child].relations for child in children)
        )
        index = self._append(_Node(plan, children, relation, below))
        exchanges[plan.id()] = index
        return index

    def _append(self, node: _Node) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1


class PlanCache:
    """The reused plan of one channel. It is made at the first small execution, and again when the key changes."""

    def __init__(self, session: SparkSession, query: str) -> None:
        """`query` is the channel's own text."""
        self._session = session
        self._key: str | None = None
        self._plan: ReusedPlan | None = None
        self.usable = not depends_on_clock(query)
        """False if every execution of the channel must be planned anew."""
        self.reused = 0
        """The number of executions with a plan that an earlier one had made."""

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
            if self._plan is None or self._key != key:
                self._plan, self._key = ReusedPlan.of(self._session, tables, plan, assumed_bytes), key
                return self._plan.run(tables)
            results = self._plan.run(tables)
        except NotReusable:
            self.usable = False
        except (*SPARK_ERRORS, Py4JError):
            self._plan = None  # parts of it may have failed for good
        else:
            self.reused += 1
            return results
        return None


def _empty_relation(session: SparkSession, schema: pa.Schema, assumed_bytes: int) -> _Relation:
    """A relation with these columns and an unknown number of rows, which keeps the optimiser from folding it."""
    jvm: Any = session.sparkContext._jvm
    sql = jvm.org.apache.spark.sql
    columns = session.createDataFrame(schema.empty_table())._jdf.schema()
    rdd = session.sparkContext._jsc.emptyRDD().rdd()
    plan = session._jsparkSession.internalCreateDataFrame(rdd, columns, False).queryExecution().logical()
    session.conf.set(_DEFAULT_SIZE, str(assumed_bytes))
    statistics = plan.stats()  # the plan keeps them only until Spark copies it, so they become a field of it
    session.conf.unset(_DEFAULT_SIZE)
    others = list(_each(plan.otherCopyArgs()))
    others[1] = jvm.scala.Some(statistics)
    sized = plan.copy(*(_default(plan, place) for place in range(1, 7)), *others)
    frame = sql.classic.Dataset.ofRows(session._jsparkSession, sized)
    return _Relation(DataFrame(frame, session), rdd.id())


def _scan(session: SparkSession, table: pa.Table) -> Java:
    """The node of a physical plan that reads this table from memory."""
    plan = session.createDataFrame(table)._jdf.queryExecution().executedPlan()
    if plan.getClass().getSimpleName() != "LocalTableScanExec":
        raise NotReusable("a table that Spark does not keep in the plan")
    return plan


def _activate(session: SparkSession) -> None:
    """Make it the session of this thread in the JVM: nodes of a plan take their settings from there."""
    jvm = session.sparkContext._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


def _scala_list(empty: Java, items: list[Java]) -> Java:
    made = empty
    for item in reversed(items):
        made = made.prepended(item)
    return made


def _each(sequence: Java) -> Iterator[Java]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _default(node: Java, place: int) -> Java:
    """The value of a node's own field by its place: what `copy` would keep."""
    return getattr(node, f"copy$default${place}")()
