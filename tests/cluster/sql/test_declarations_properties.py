"""Whatever is written, reading an application file ends with an answer, and its places are right."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.cluster.sql.declarations import parse_application
from tocsin.cluster.sql.problems import Position
from tocsin.cluster.sql.statements import Application, CreateChannel
from tocsin.cluster.sql.tokens import Token, TokenKind, scan

EXAMPLE = (Path(__file__).parents[3] / "examples" / "emergency" / "emergency.sql").read_text(encoding="utf-8")
TOKENS = scan(EXAMPLE).tokens
STATEMENTS = 11

fragments = st.lists(
    st.one_of(
        st.sampled_from([token.text for token in TOKENS]),
        st.sampled_from(["'", '"', "`", "--", "/*", "*/", ";", "(", ")", ":", "::", "?", "\\", "\0", "\ufeff", "1L"]),
        st.text(max_size=4),
    ),
    max_size=40,
)  # fmt: skip


def check_places(text: str, application: Application) -> None:
    lines = text.split("\n")
    for problem in application.problems:
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
        assert problem.with_source(text).count("\n") == 2


@given(st.text())
def test_any_text_gets_an_answer(text: str) -> None:
    check_places(text, parse_application(text))


@settings(max_examples=200)
@given(fragments, st.sampled_from([" ", "", "\n"]))
def test_any_heap_of_sql_gets_an_answer(parts: list[str], between: str) -> None:
    text = between.join(parts)
    check_places(text, parse_application(text))


@settings(max_examples=40)
@given(st.integers(0, len(EXAMPLE)), st.integers(0, 30), st.text(max_size=3))
def test_any_change_of_the_example_gets_an_answer(start: int, length: int, inserted: str) -> None:
    text = EXAMPLE[:start] + inserted + EXAMPLE[start + length :]
    check_places(text, parse_application(text))


def test_the_example_has_no_problems() -> None:
    application = parse_application(EXAMPLE, "emergency.sql")
    assert [str(problem) for problem in application.problems] == []
    assert len(application.statements) == STATEMENTS


def keywords_of_our_own() -> list[Token]:
    """The words of the grammar in the example: outside the queries, each has its place and no other word would do."""
    queries = [
        (start := EXAMPLE.index(statement.channel.query), start + len(statement.channel.query))
        for statement in parse_application(EXAMPLE).statements
        if isinstance(statement, CreateChannel)
    ]
    grammar = {
        "CREATE",
        "STREAM",
        "KEYED",
        "STATIC",
        "DATASET",
        "FROM",
        "REPETITIVE",
        "CONTINUOUS",
        "CHANNEL",
        "EVERY",
        "AS",
    }
    return [
        token
        for token in TOKENS
        if token.upper in grammar and not any(start <= token.start < end for start, end in queries)
    ]  # fmt: skip


@settings(max_examples=30)
@given(st.sampled_from(keywords_of_our_own()))
def test_a_misspelt_keyword_is_reported_where_it_stands_and_nowhere_else(token: Token) -> None:
    text = EXAMPLE[: token.start] + "zzz" + EXAMPLE[token.end :]
    (problem,) = parse_application(text).problems
    assert problem.position == Position.of(EXAMPLE, token.start)
    assert token.upper in (problem.expected or "")


@settings(max_examples=40)
@given(st.integers(0, len(TOKENS) - 1), st.sampled_from(["\n", "\n\n  ", " /* ; */ ", " -- ;\n", "\t"]))
def test_space_and_comments_between_tokens_change_nothing_but_places(index: int, space: str) -> None:
    before, token = TOKENS[index - 1], TOKENS[index]
    glued = index > 0 and before.end == token.start
    text = EXAMPLE if glued else EXAMPLE[: token.start] + space + EXAMPLE[token.start :]
    assert parse_application(text).problems == ()


@pytest.mark.parametrize("marker", ["kind", "radius_m", "user"])
def test_a_wrong_marker_is_reported_at_its_colon(marker: str) -> None:
    for offset in (i for i in range(len(EXAMPLE)) if EXAMPLE.startswith(f":{marker}", i)):
        text = EXAMPLE[:offset] + ":zz" + EXAMPLE[offset + len(marker) + 1 :]
        places = [p.position for p in parse_application(text).problems if p.code == "unknown-parameter"]
        assert places == [Position.of(EXAMPLE, offset)]


def test_names_and_strings_are_not_keywords() -> None:
    assert {token.upper for token in TOKENS if token.kind is not TokenKind.WORD} == {""}
