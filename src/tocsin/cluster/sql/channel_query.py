"""A parsed channel query: which datasets and parameters it uses. Also refuses a query that a channel may not run.

Only text and syntax: no Spark and no catalog. `declarations` and the data cluster call `parse_channel_query`;
`query_sql` writes the SQL that runs the result.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from sqlglot import Token as SqlglotToken
from sqlglot import exp
from sqlglot.errors import ErrorLevel, ParseError

from tocsin.cluster.sql.allowed_functions import reason_to_refuse, refusal_of
from tocsin.cluster.sql.near_join import (
    SIGNATURES,
    GeoCall,
    GridJoin,
    TableReference,
    direct_join_offsets,
    find_geo_calls,
    find_grid_joins,
)
from tocsin.cluster.sql.problems import Problem, did_you_mean
from tocsin.cluster.sql.query_scan import Marker, QueryScan, scan_query
from tocsin.cluster.sql.tokens import SPARK, Token, spark_tokens
from tocsin.model.schema import Schema


@dataclass(frozen=True, slots=True)
class ChannelQuery:
    text: str
    """The query as written, with blanks in place of comments."""
    parameters: Schema
    datasets: frozenset[str]
    """The datasets that the query reads in full. Each name once, as first written; Spark's names ignore case."""
    new_datasets: frozenset[str]
    """The datasets that it reads with NEW."""
    markers: frozenset[str]
    """The parameters that it uses, spelled as the parameters are."""
    ast: exp.Query
    """Each `NEW X` is the table `NEW_X` in it. `meta["start"]` of a name is its offset in `text`."""
    references: tuple[TableReference, ...]
    marker_places: tuple[Marker, ...]
    tokens: tuple[Token, ...]
    geo_calls: tuple[GeoCall, ...]
    grids: tuple[GridJoin, ...]
    """The `near` conditions that become an equality of grid cells."""
    direct_join_offsets: tuple[int, int] | None
    """The offsets for the subscriptions if the query may be joined with them without LATERAL, else None."""


def parse_channel_query(text: str, parameters: Schema) -> ChannelQuery | list[Problem]:
    """The query, or all its problems with positions relative to `text`."""
    scanned = scan_query(text)
    markers = _check_markers(scanned, parameters)
    calls = find_geo_calls(scanned.tokens)
    _check_arguments(scanned, calls)
    ast = _parse(scanned)
    references: tuple[TableReference, ...] = ()
    if ast is not None:
        _check_tree(scanned, ast)
        references = _find_tables(scanned, ast)
    if scanned.problems or ast is None:
        return sorted(scanned.problems, key=lambda problem: problem.position)
    marker_places = tuple(scanned.markers)
    return ChannelQuery(
        text=scanned.text,
        parameters=parameters,
        datasets=_names(references, is_new=False),
        new_datasets=_names(references, is_new=True),
        markers=markers,
        ast=ast,
        references=references,
        marker_places=marker_places,
        tokens=scanned.tokens,
        geo_calls=calls,
        grids=find_grid_joins(ast, references, scanned.tokens, calls),
        direct_join_offsets=direct_join_offsets(ast, marker_places, scanned.tokens),
    )


def _check_arguments(scanned: QueryScan, calls: tuple[GeoCall, ...]) -> None:
    for call in calls:
        parameters = SIGNATURES[call.name]
        if len(call.arguments) != len(parameters):
            signature = f"{call.name.lower()}({', '.join(parameters)})"
            message = f"expected {signature} but found {len(call.arguments)} arguments"
            scanned.refuse(call.span.start, message, "arguments", signature)


def _names(references: tuple[TableReference, ...], is_new: bool) -> frozenset[str]:
    by_upper: dict[str, str] = {}
    for table in references:
        if table.is_new == is_new:
            by_upper.setdefault(table.dataset.upper(), table.dataset)
    return frozenset(by_upper.values())


def _check_markers(scanned: QueryScan, parameters: Schema) -> frozenset[str]:
    spelling = {name.upper(): name for name in parameters.names}
    used = set()
    for marker in scanned.markers:
        if marker.name.upper() in spelling:
            used.add(spelling[marker.name.upper()])
        else:
            hint = did_you_mean(marker.name, parameters.names)
            message = f":{marker.name} is not a parameter of this channel{hint}"
            listed = ", ".join(f":{name}" for name in parameters.names) or None
            scanned.refuse(marker.start, message, "unknown-parameter", listed)
    return frozenset(used)


def _parse(scanned: QueryScan) -> exp.Query | None:
    """The syntax tree of the text's only query; None, with a problem, if the text is anything else."""
    if any(problem.code == "unfinished" for problem in scanned.problems):
        return None
    tokens: list[SqlglotToken] = []
    try:
        tokens = spark_tokens(scanned.readable)
        statements = SPARK.parser(error_level=ErrorLevel.IMMEDIATE).parse(tokens, scanned.readable)
    except ParseError as error:
        scanned.refuse(*_syntax_error(error, tokens, scanned), "syntax", "a query")
        return None
    except RecursionError:
        scanned.refuse(0, "the query is nested too deeply", "syntax")
        return None
    except Exception as error:  # sqlglot raises many kinds of errors on hostile text: report all of them as problems
        scanned.refuse(0, f"the query cannot be read: {error}", "syntax", "a query")
        return None
    present = [statement for statement in statements if statement is not None]
    first = scanned.tokens[0].start if scanned.tokens else 0
    if not present:
        scanned.refuse(first, "expected a query but found nothing", "syntax", "a query")
    elif len(statements) > 1:
        semicolon = next((token.start for token in scanned.tokens if token.is_symbol(";")), first)
        scanned.refuse(semicolon, "a channel is one query, but found ';'", "not-a-query", "one query")
    elif isinstance(present[0], exp.Query) and not isinstance(present[0], exp.Values):
        return present[0]
    else:
        word = scanned.tokens[0].text if scanned.tokens else ""
        message = f"a channel is a query: expected SELECT or WITH but found '{word}'"
        scanned.refuse(first, message, "not-a-query", "SELECT or WITH")
    return None


def _syntax_error(error: ParseError, tokens: list[SqlglotToken], scanned: QueryScan) -> tuple[int, str]:
    """(offset, message). sqlglot identifies a token by the line and column of its last character."""
    details = error.errors[0] if error.errors else {}
    ends = {(token.line, token.col): token for token in tokens}
    token = ends.get((int(details.get("line") or 0), int(details.get("col") or 0)))
    if token is None:
        return 0, f"the query cannot be parsed: {error}"
    description = str(details.get("description", "")).split(" but got <Token")[0].rstrip(".")
    if incomplete := _INCOMPLETE.fullmatch(description):
        return token.start, f"the query cannot be parsed: {incomplete[1].upper()} is incomplete"
    is_last = token.end >= tokens[-1].end
    near = scanned.text[token.start : token.end + 1]
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


def _check_tree(scanned: QueryScan, ast: exp.Query) -> None:
    for node in ast.walk():
        message = _REFUSED_NODES.get(type(node))
        if message is not None:
            scanned.refuse(_offset_of(node), message, "not-a-query")
        if isinstance(node, exp.Anonymous) and str(node.this).upper() not in SIGNATURES:
            _check_function(scanned, node)
    # The offsets come from the tokens, the meaning from the tree. Where they disagree, a marker would not be replaced.
    by_tokens = Counter(marker.name.upper() for marker in scanned.markers)
    by_tree = Counter(str(node.this).upper() for node in ast.find_all(exp.Placeholder) if node.this)
    for name in sorted(name for name in by_tokens | by_tree if by_tokens[name] != by_tree[name]):
        places = [marker.start for marker in scanned.markers if marker.name.upper() == name]
        scanned.refuse(places[0] if places else 0, f"a marker is not allowed here: ':{name.lower()}'", "marker")


def _check_function(scanned: QueryScan, call: exp.Anonymous) -> None:
    """Refuse an unknown function. Those with a known reason have been reported already, by their names."""
    name = str(call.this)
    if reason_to_refuse(name) is None and (message := refusal_of(name)) is not None:
        scanned.refuse(int(call.meta.get("start", _offset_of(call))), message, "unknown-function", "a function")


def _offset_of(node: exp.Expr) -> int:
    """The first known offset in a node or around it: only names have an offset."""
    current: exp.Expr | None = node
    while current is not None:
        starts = [part.meta["start"] for part in current.walk() if "start" in part.meta]
        if starts:
            return int(min(starts))
        current = current.parent
    return 0


def _find_tables(scanned: QueryScan, ast: exp.Query) -> tuple[TableReference, ...]:
    """The datasets in FROM clauses. A name is a dataset unless a WITH that is visible there declares it."""
    references = []
    for table in ast.find_all(exp.Table):
        name = table.this
        if not isinstance(name, exp.Identifier) or table.find_ancestor(exp.Hint, exp.Into) is not None:
            continue  # a table function, or a hint that names an alias
        start = int(name.meta["start"])
        if table.args.get("db") is not None:
            offset = int(table.args["db"].meta.get("start", start))
            message = f"a channel reads declared datasets by their plain name, but found '{table.sql(dialect='spark')}'"
            scanned.refuse(offset, message, "qualified-name", "a dataset")
            continue
        new = scanned.news.get(start)
        dataset = name.this if new is None else new.dataset
        if _is_cte(table, dataset):
            if new is None:
                continue
            message = f"NEW reads a dataset, but '{dataset}' is declared by WITH"
            scanned.refuse(start, message, "new-of-cte", "a dataset")
        end = int(name.meta["end"]) + 1 if new is None else new.end
        references.append(TableReference(dataset, new is not None, start, end, table.alias or None))
    return _without_copies(scanned, references)


def _without_copies(scanned: QueryScan, references: list[TableReference]) -> tuple[TableReference, ...]:
    """The references in the order of the text, each once: sqlglot copies the start of a pipeline (`FROM t |> …`)."""
    by_place: dict[int, TableReference] = {}
    for table in sorted(references, key=lambda table: table.start):
        if by_place.setdefault(table.start, table) != table:
            message = f"this pipeline gives '{table.dataset}' two names: write it with SELECT instead of |>"
            scanned.refuse(table.start, message, "not-a-query", "SELECT or WITH")
    return tuple(by_place.values())


def _is_cte(table: exp.Expr, name: str) -> bool:
    """True if a WITH of the table's own query or of an outer query declares `name`."""
    inside: exp.Expr = table
    parent = table.parent
    while parent is not None:
        with_ = parent if isinstance(parent, exp.With) else parent.args.get("with_")
        if isinstance(with_, exp.With) and with_ is not inside:
            declared = [cte for cte in with_.expressions if isinstance(cte, exp.CTE)]
            if isinstance(parent, exp.With):
                # Inside a WITH, a definition can use those before it, and itself if it is recursive.
                own = next((index for index, cte in enumerate(declared) if cte is inside), len(declared))
                declared = declared[: own + 1 if with_.args.get("recursive") else own]
            if any(cte.alias.upper() == name.upper() for cte in declared):
                return True
        inside, parent = parent, parent.parent
    return False
