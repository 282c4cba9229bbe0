"""Lists every node of a Spark plan, parsed or analysed, and every token of an SQL text, each in one call to the JVM.

Spark's own listings are not good enough for a check of what a plan contains. `toString` mixes names with the author's
texts. `toJSON` leaves out the definitions of a WINDOW clause, repeats the branches of a nested CASE at every level, and
takes a third of a second for a channel with `near`. A walk from Python makes thousands of calls. So a small Java class
walks over the plan (`java/TocsinPlanReader.java`). It visits whatever is a node: children, inner children, and nodes in
lists, maps, options and tuples among the arguments of a node. The same class lists the tokens that Spark's tokenizer
finds.

Not a check: `query_check` decides which nodes are allowed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from tocsin.cluster.spark.java_classes import java_object


class PlanNode(NamedTuple):
    kind: str
    """The node's class, with its package."""
    view: str
    """The innermost view that the node is part of; empty outside views."""
    name: tuple[str, ...]
    """Of an unresolved function or relation: the parts of its name. Of a WITH: the names it declares. Of a view: its
    name. Empty for other nodes."""


class SparkToken(NamedTuple):
    start: int
    end: int
    """The offset after the last character."""
    is_hidden: bool
    """True for blanks and comments."""


def plan_nodes(session: SparkSession, plan: Any) -> list[PlanNode]:
    """The different nodes of a plan: a `LogicalPlan` of the JVM."""
    lines = _reader(session).walk(plan).splitlines()
    fields = (line.split("\x01") for line in lines)
    return [PlanNode(kind, view, tuple(part for part in name.split("\x02") if part)) for kind, view, name in fields]


def spark_tokens(session: SparkSession, text: str) -> list[SparkToken]:
    """The tokens that Spark's tokenizer finds in a text."""
    fields = (token.split(":") for token in _reader(session).tokens(text).split())
    return [SparkToken(int(start), int(end), channel != "0") for start, end, channel in fields]


def _reader(session: SparkSession) -> Any:
    return java_object(session, "TocsinPlanReader")
