"""Checks what Spark makes of a channel query, before Spark evaluates any of it.

`cluster.sql` has read the query with sqlglot. Spark is another program with another parser, and its reading counts. So
the SQL of a channel passes three checks here, each of them on Spark's own reading:
1. Spark's tokenizer finds the same names and strings as `cluster.sql.lexing`, and no comment.
2. The parsed plan has only nodes of `allowed_nodes`, functions of `allowed_functions` and the views of the channel.
   Analysis evaluates parts of a query (inline tables, arguments of table functions), so this check comes before it.
3. The analysed plan has only nodes and functions of `allowed_nodes`, and reads nothing but the channel's own views.

`execution.prepare` calls `checked_frame` once for each definition of a channel, not at executions.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tocsin.cluster.spark.plan_walk import PlanNode, plan_nodes, spark_tokens
from tocsin.cluster.sql.allowed_functions import refusal_of
from tocsin.cluster.sql.allowed_nodes import ANALYSED_NODES, PACKAGES, PARSED_NODES, REFUSED_NODES, VIEW_LEAVES
from tocsin.cluster.sql.channel_query import ChannelQuery
from tocsin.cluster.sql.lexing import LexemeKind, disagreement, lex
from tocsin.wire.errors import Code, TocsinError

_FUNCTIONS = frozenset({"UnresolvedFunction", "UnresolvedTableValuedFunction", "UnresolvedGenerator"})
_UNLIKE = "Spark reads this text in another way than it seems: rewrite it"


class QueryRefused(TocsinError):
    """A channel query that Spark may not run."""

    def __init__(self, message: str, offset: int = 0) -> None:
        """`offset` is the place in the query."""
        super().__init__(Code.BAD_SQL, message)
        self.offset = offset


def checked_frame(session: SparkSession, query: ChannelQuery, sql: str, views: Collection[str]) -> DataFrame:
    """The frame of `sql`, which was written from `query` and reads `views`. Raises `QueryRefused`, or Spark's error."""
    check_tokens(session, query.text)
    plan = parsed_plan(session, sql)
    check_parsed(query, plan_nodes(session, plan), views)
    jvm: Any = session._jvm
    frame = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    check_analysed(query, plan_nodes(session, frame.queryExecution().analyzed()), views)
    return DataFrame(frame, session)


def parsed_plan(session: SparkSession, sql: str) -> Any:
    """Spark's parsed plan. Nothing is looked up and nothing is evaluated."""
    return session._jsparkSession.sessionState().sqlParser().parsePlan(sql)


def check_tokens(session: SparkSession, text: str) -> None:
    """Refuse a text in which Spark finds other names and strings than `lex`, or a comment."""
    spans = []
    for start, end, is_hidden in spark_tokens(session, text):
        if is_hidden and text[start:end].strip():
            raise QueryRefused(_UNLIKE, start)
        if not is_hidden and (text[start] in "'\"`_$" or text[start].isalpha()):
            spans.append((start, end))
    lexed = lex(text)
    hints = [lexeme for lexeme in lexed.lexemes if lexeme.kind is LexemeKind.HINT]
    outside = [span for span in spans if not any(hint.start <= span[0] < hint.end for hint in hints)]
    place = disagreement(lexed.lexemes, outside)
    if lexed.unclear or lexed.unfinished or place is not None:
        raise QueryRefused(_UNLIKE, place or 0)


def check_parsed(query: ChannelQuery, nodes: Collection[PlanNode], views: Collection[str]) -> None:
    """Refuse a parsed plan with a node, a function or a relation that is not allowed."""
    declared = {name.lower() for node in nodes if _is(node, "UnresolvedWith") for name in node.name}
    for node in nodes:
        kind = _short(node.kind)
        if kind in _FUNCTIONS:
            _check_function(query, node.name)
        elif kind == "UnresolvedRelation":
            if len(node.name) != 1 or node.name[0].lower() not in {*views, *declared}:
                shown = re.sub(r"_tocsin\w*", "another table", ".".join(node.name), flags=re.IGNORECASE)
                message = f"a channel reads declared datasets by their plain name, but Spark reads '{shown}'"
                raise QueryRefused(message, _place_of(query, node.name[-1:]))
        elif kind not in PARSED_NODES:
            raise _refused(kind)


def check_analysed(query: ChannelQuery, nodes: Collection[PlanNode], views: Collection[str]) -> None:
    """Refuse an analysed plan that reads anything but the views, or has a node that is not allowed."""
    for node in nodes:
        kind = _short(node.kind)
        if kind == "View":
            if node.view == "" and node.name[:1] and node.name[0] not in views:
                raise QueryRefused(f"a channel reads declared datasets only, but Spark reads '{node.name[0]}'")
        elif kind in VIEW_LEAVES:
            if node.view not in views:
                raise QueryRefused("a channel reads declared datasets only, but Spark reads another table or file")
        elif node.view == "" and kind not in ANALYSED_NODES:
            raise _refused(kind)


def _check_function(query: ChannelQuery, name: tuple[str, ...]) -> None:
    message = refusal_of(name[0]) if len(name) == 1 else f"{'.'.join(name)}: call a function by its plain name"
    if message is not None:
        raise QueryRefused(message, _place_of(query, name[-1:]))


def _place_of(query: ChannelQuery, name: tuple[str, ...]) -> int:
    """The offset of a name in the query; 0 if it is not there."""
    wanted = "".join(name).lower()
    return next((token.start for token in query.tokens if token.is_identifier and token.text.lower() == wanted), 0)


def _refused(kind: str) -> QueryRefused:
    reason = REFUSED_NODES.get(kind)
    if reason is None:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.rpartition(".")[2].strip("$")).lower()
        reason = f"a channel may not use this part of Spark SQL ({name}): rewrite the query without it"
    return QueryRefused(reason)


def _is(node: PlanNode, kind: str) -> bool:
    return _short(node.kind) == kind


def _short(kind: str) -> str:
    """The class without its package, if it is one of Spark's packages for plans and expressions."""
    package, _, name = kind.rpartition(".")
    return name if package in PACKAGES else kind
