"""Reads CREATE TOPIC and DROP TOPIC of an application file. `declarations` has the other statements and calls this.

The data cluster does not host topics: `tocsin apply` sends these statements to the coordinator. The data cluster only
checks that the dataset of RECORD INTO exists.
"""

from __future__ import annotations

import re

from tocsin.cluster.sql.clauses import TokenCursor
from tocsin.cluster.sql.tokens import TokenKind
from tocsin.model.ids import TopicName
from tocsin.model.topic import parse_bound_s, parse_rate_per_s, topic_problem
from tocsin.model.topic_persistence import Persistence, parse_persistence

_UNQUOTED = re.compile(r"[^\s;]+")
_CLAUSES = ("DELAY", "PROTECTED", "PERSISTENT", "RECORD")


def topic_name(cursor: TokenCursor) -> TopicName:
    """Read `swarm/3/leader`; a name in quotes may contain `--`, which otherwise begins a comment."""
    token = cursor.token
    if token is None or token.is_symbol(";"):
        cursor.fail("the name of a topic")
    start = token.start
    if token.kind in (TokenKind.STRING, TokenKind.QUOTED):
        name = cursor.advance().text
    else:
        match = _UNQUOTED.match(cursor.text, start)
        name = "" if match is None else match.group()
        cursor.advance_to(start + len(name))
    problem = topic_problem(name)
    if "--" in name and cursor.text[start] not in "'\"`":
        problem = "-- begins a comment: write the name of this topic in quotes"
    if problem is not None:
        cursor.note(start, problem, "name", "the name of a topic")
    return TopicName(name)


def bound_s(cursor: TokenCursor, clause: str, example: str) -> float | None:
    """Read the duration of `WITHIN 40 MS` or `DELAY 1 S`; None without the clause."""
    if not cursor.accept(clause):
        return None
    start, written = _rest_of_clause(cursor)
    within_s = parse_bound_s(written)
    if within_s is None:
        message = f"{clause} {written}: expected a duration such as {example}, up to an hour"
        cursor.note(start, message, "duration", f"a duration such as {example}")
    return within_s


def protected_per_s(cursor: TokenCursor) -> float | None:
    """Read the rate of `PROTECTED 5 PER SECOND`; None without the clause."""
    if not cursor.accept("PROTECTED"):
        return None
    start, written = _rest_of_clause(cursor)
    per_s = parse_rate_per_s(written)
    if per_s is None:
        message = f"PROTECTED {written}: expected a rate such as 5 PER SECOND"
        cursor.note(start, message, "rate", "a rate such as 5 PER SECOND")
    return per_s


def persistence(cursor: TokenCursor) -> Persistence:
    """Read the clause behind PERSISTENT."""
    start, written = _rest_of_clause(cursor)
    kept = parse_persistence(written)
    if isinstance(kept, str):
        cursor.note(start, kept, "persistence", "PERSISTENT [REPLICAS n [QUORUM q]] [RETAIN size, duration]")
        return Persistence()
    return kept


def _rest_of_clause(cursor: TokenCursor) -> tuple[int, str]:
    """(offset, the words up to the next clause or the end of the statement, with one blank between them)."""
    start = end = cursor.offset
    words: list[str] = []
    while not cursor.at_statement_end() and cursor.token is not None and cursor.token.upper not in _CLAUSES:
        token = cursor.advance()
        text = token.text if token.kind is TokenKind.STRING else cursor.text[token.start : token.end]
        if words and token.start == end:
            words[-1] += text
        else:
            words.append(text)
        end = token.end
    return start, " ".join(words)
