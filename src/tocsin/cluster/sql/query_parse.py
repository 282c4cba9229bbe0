"""Reads a channel's query: what it reads, its markers, and what it may not do.

Pure text and syntax: no Spark, no catalog. `declarations` drives it, through `channel_query`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from sqlglot import Token as SqlglotToken
from sqlglot import exp
from sqlglot.errors import ErrorLevel, ParseError

from tocsin.cluster.sql.flatten import flat_places
from tocsin.cluster.sql.geo_calls import SIGNATURES, GeoCall, find_geo_calls
from tocsin.cluster.sql.grid_join import Grid, find_grids
from tocsin.cluster.sql.problems import Problem, did_you_mean
from tocsin.cluster.sql.query_scan import Marker, QueryScan, scan_query
from tocsin.cluster.sql.query_tables import TableReference, find_tables
from tocsin.cluster.sql.tokens import SPARK, Token, spark_tokens
from tocsin.model.schema import Schema


@dataclass(frozen=True, slots=True)
class ChannelQuery:
    text: str
    parameters: Schema
    datasets: frozenset[str]
    """Read as a whole. Each name once, in the spelling of its first use; Spark's names do not mind their case."""
    new_datasets: frozenset[str]
    """Read as NEW."""
    markers: frozenset[str]
    """In the spelling of the parameters."""
    ast: exp.Query
    """Each `NEW X` is the table `NEW_X` in it; `meta["start"]` of a name is its place in `text`."""
    references: tuple[TableReference, ...]
    marker_places: tuple[Marker, ...]
    tokens: tuple[Token, ...]
    geo_calls: tuple[GeoCall, ...]
    grids: tuple[Grid, ...]
    """The `near` conditions that become an equality of grid cells."""
    flat_places: tuple[int, int] | None
    """Where a plain query takes the subscriptions in, when it may be joined with them directly: see `flatten`."""


def parse_channel_query(text: str, parameters: Schema) -> ChannelQuery | list[Problem]:
    """The query, or all that is wrong with it, at places counted in `text`."""
    found = scan_query(text)
    markers = _check_markers(found, parameters)
    calls = find_geo_calls(found.tokens)
    _check_arguments(found, calls)
    ast = _parse(found)
    references: tuple[TableReference, ...] = ()
    if ast is not None:
        _check_tree(found, ast)
        references = find_tables(found, ast)
    if found.problems or ast is None:
        return sorted(found.problems, key=lambda problem: problem.position)
    return ChannelQuery(
        text, parameters, _names(references, False), _names(references, True), markers, ast, references,
        tuple(found.markers), found.tokens, calls, find_grids(ast, references, found.tokens, calls),
        flat_places(ast, tuple(found.markers), found.tokens),
    )  # fmt: skip


def _check_arguments(found: QueryScan, calls: tuple[GeoCall, ...]) -> None:
    for call in calls:
        wanted = SIGNATURES[call.name]
        if len(call.arguments) != len(wanted):
            signature = f"{call.name.lower()}({', '.join(wanted)})"
            message = f"expected {signature} but found {len(call.arguments)} arguments"
            found.refuse(call.span.start, message, "arguments", signature)


def _names(references: tuple[TableReference, ...], is_new: bool) -> frozenset[str]:
    by_upper: dict[str, str] = {}
    for table in references:
        if table.is_new == is_new:
            by_upper.setdefault(table.dataset.upper(), table.dataset)
    return frozenset(by_upper.values())


def _check_markers(found: QueryScan, parameters: Schema) -> frozenset[str]:
    spelling = {name.upper(): name for name in parameters.names}
    used = set()
    for marker in found.markers:
        if marker.name.upper() in spelling:
            used.add(spelling[marker.name.upper()])
        else:
            hint = did_you_mean(marker.name, parameters.names)
            message = f":{marker.name} is not a parameter of this channel{hint}"
            found.refuse(marker.start, message, "unknown-parameter", _listed(parameters))
    return frozenset(used)


def _listed(parameters: Schema) -> str | None:
    return ", ".join(f":{name}" for name in parameters.names) or None


def _parse(found: QueryScan) -> exp.Query | None:
    """The tree of the one query that `found` must be; None with a problem noted otherwise."""
    if any(problem.code == "unfinished" for problem in found.problems):
        return None
    tokens: list[SqlglotToken] = []
    try:
        tokens = spark_tokens(found.readable)
        statements = SPARK.parser(error_level=ErrorLevel.IMMEDIATE).parse(tokens, found.readable)
    except ParseError as error:
        found.refuse(*_syntax_error(error, tokens, found), "syntax", "a query")
        return None
    except RecursionError:
        found.refuse(0, "the query is nested too deeply", "syntax")
        return None
    except Exception as error:  # sqlglot fails in many ways on hostile text, and none of them is ours to raise
        found.refuse(0, f"the query cannot be read: {error}", "syntax", "a query")
        return None
    present = [statement for statement in statements if statement is not None]
    first = found.tokens[0].start if found.tokens else 0
    if not present:
        found.refuse(first, "expected a query but found nothing", "syntax", "a query")
    elif len(statements) > 1:
        semicolon = next((token.start for token in found.tokens if token.is_symbol(";")), first)
        found.refuse(semicolon, "a channel is one query, but found ';'", "not-a-query", "one query")
    elif isinstance(present[0], exp.Query) and not isinstance(present[0], exp.Values):
        return present[0]
    else:
        word = found.tokens[0].text if found.tokens else ""
        found.refuse(
            first, f"a channel is a query: expected SELECT or WITH but found '{word}'", "not-a-query", "SELECT or WITH"
        )
    return None


def _syntax_error(error: ParseError, tokens: list[SqlglotToken], found: QueryScan) -> tuple[int, str]:
    """Where and what. sqlglot names a token by the line and column of its last character."""
    details = error.errors[0] if error.errors else {}
    ends = {(token.line, token.col): token for token in tokens}
    token = ends.get((int(details.get("line") or 0), int(details.get("col") or 0)))
    if token is None:
        return 0, f"the query cannot be parsed: {error}"
    description = str(details.get("description", "")).split(" but got <Token")[0].rstrip(".")
    if incomplete := _INCOMPLETE.fullmatch(description):
        return token.start, f"the query cannot be parsed: {incomplete[1].upper()} is incomplete"
    is_last = token.end >= tokens[-1].end
    near = found.text[token.start : token.end + 1]
    where = f"after '{near}' at the end of the query" if is_last else f"at '{near}'"
    return token.start, f"the query cannot be parsed {where}: {description[:1].lower()}{description[1:]}"


_INCOMPLETE = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]*\.(\w+)'>")

_REFUSED_NODES: dict[type[exp.Expr], str] = {
    exp.Into: "a channel only reads: SELECT INTO is not allowed",
    exp.QueryTransform: "TRANSFORM is not allowed in a channel: it runs code outside Spark SQL",
    exp.TableSample: "TABLESAMPLE is not allowed in a channel: an execution that is repeated would give other results",
    exp.Version: "a channel reads a dataset as of now: VERSION and TIMESTAMP AS OF are not allowed",
    **dict.fromkeys(
        (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Command),
        "a channel only reads: a statement that changes something is not allowed",
    ),
}


def _check_tree(found: QueryScan, ast: exp.Query) -> None:
    for node in ast.walk():
        message = _REFUSED_NODES.get(type(node))
        if message is not None:
            found.refuse(place_of(node), message, "not-a-query")
    # The tokens say where the markers are, the tree says what they are. They must agree, or one would be left as it is.
    by_tokens = Counter(marker.name.upper() for marker in found.markers)
    by_tree = Counter(str(node.this).upper() for node in ast.find_all(exp.Placeholder) if node.this)
    for name in sorted(name for name in by_tokens | by_tree if by_tokens[name] != by_tree[name]):
        places = [marker.start for marker in found.markers if marker.name.upper() == name]
        found.refuse(places[0] if places else 0, f"a marker cannot stand here: ':{name.lower()}'", "marker")


def place_of(node: exp.Expr) -> int:
    """The first place known in or around a node: only names carry theirs."""
    current: exp.Expr | None = node
    while current is not None:
        starts = [part.meta["start"] for part in current.walk() if "start" in part.meta]
        if starts:
            return int(min(starts))
        current = current.parent
    return 0
