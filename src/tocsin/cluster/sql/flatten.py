"""May a channel query be joined with its subscriptions directly, instead of through LATERAL?

For a query of only FROM, WHERE and a list of columns the two mean the same, and Spark plans the direct join better: it
would rather compute a `near` join for each distinct radius before it looks at who asked [measured: a nested loop over
all reports and users]. Only queries with a grid in their outermost FROM take this way; the rest stay LATERAL.

Reads the tree, changes nothing: `channel_query` writes the SQL.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from tocsin.cluster.sql.geo_calls import SIGNATURES, Span
from tocsin.cluster.sql.query_scan import Marker
from tocsin.cluster.sql.tokens import Token

_PLAIN_CLAUSES = {"expressions", "from_", "joins", "where", "with_", "hint"}


def flat_places(ast: exp.Query, markers: tuple[Marker, ...], tokens: tuple[Token, ...]) -> tuple[int, int] | None:
    """Just past SELECT and just past FROM, for the subscription and its relation; None if the query is not plain."""
    if not isinstance(ast, exp.Select) or {name for name, value in ast.args.items() if value} - _PLAIN_CLAUSES:
        return None
    if any(token.text == "|>" for token in tokens):
        return None  # what follows a pipe may drop the subscription again
    if not _joins_keep_left_rows(ast) or not _calls_are_plain(ast) or _markers_inside_relations(ast):
        return None
    select, from_ = _keyword_places(ast, tokens)
    if select is None or from_ is None or from_ < select:
        return None
    # `FROM s CROSS JOIN a, b JOIN c ON …`: the ON would not see `s`.
    outermost = _outermost(tokens)
    end = next((index for index in outermost if index > from_ and tokens[index].upper == "WHERE"), len(tokens))
    clause = Span(tokens[from_].start, tokens[end - 1].end)
    commas = any(from_ < index < end and tokens[index].is_symbol(",") for index in outermost)
    if commas and any(clause.holds(marker.start) for marker in markers):
        return None
    return tokens[select].end, tokens[from_].end


def _joins_keep_left_rows(ast: exp.Select) -> bool:
    return all(
        join.side in ("", "LEFT") and not join.args.get("method") and not isinstance(join.this, exp.Lateral)
        for join in ast.args.get("joins") or ()
    )


def _calls_are_plain(ast: exp.Select) -> bool:
    """No aggregate or window, nor a function that sqlglot does not know: it may be an aggregate."""
    for part in ast.expressions:
        for node in _own_nodes(part):
            unknown = isinstance(node, exp.Anonymous) and str(node.this).upper() not in SIGNATURES
            if unknown or isinstance(node, exp.AggFunc | exp.Window):
                return False
    return True


def _own_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    return node.walk(prune=lambda inner: isinstance(inner, exp.Query))


def _markers_inside_relations(ast: exp.Select) -> bool:
    """A derived table or a WITH does not see its neighbours, so it would not see the subscriptions."""
    from_ = ast.args.get("from_")
    relations = [] if from_ is None else [from_.this]
    relations += [join.this for join in ast.args.get("joins") or ()]
    with_ = ast.args.get("with_")
    if with_ is not None:
        relations.append(with_)
    return any(relation.find(exp.Placeholder) is not None for relation in relations)


def _keyword_places(ast: exp.Select, tokens: tuple[Token, ...]) -> tuple[int | None, int | None]:
    """The tokens SELECT (or its hint, or ALL) and FROM of the outermost query."""
    outermost = _outermost(tokens)
    select = next((index for index in outermost if tokens[index].upper == "SELECT"), None)
    clause = ast.args.get("from_")
    if select is None or clause is None:
        return None, None
    # The last FROM before the first relation: `IS DISTINCT FROM` may stand in the list of columns.
    first = min((node.meta["start"] for node in clause.walk() if "start" in node.meta), default=0)
    before = [index for index in outermost if tokens[index].upper == "FROM" and tokens[index].start < first]
    while tokens[select + 1].text.startswith("/*+") or tokens[select + 1].upper == "ALL":
        select += 1
    return select, before[-1] if before else None


def _outermost(tokens: tuple[Token, ...]) -> list[int]:
    """The tokens that stand inside no parenthesis."""
    found, depth = [], 0
    for index, token in enumerate(tokens):
        depth -= token.is_symbol(")")
        if depth == 0:
            found.append(index)
        depth += token.is_symbol("(")
    return found
