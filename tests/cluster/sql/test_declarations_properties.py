"""Parsing any text as an application file returns a result, never an exception, with correct positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.cluster.sql.declarations import Application, CreateChannel, parse_application
from tocsin.cluster.sql.problems import Position
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
)


def check_places(text: str, application: Application) -> None:
    lines = text.split("\n")
    for problem in application.problems:
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
        assert problem.with_source(text).count("\n") == 2


@given(st.text())
def test_any_text_is_parsed_without_an_exception(text: str) -> None:
    check_places(text, parse_application(text))


@settings(max_examples=200)
@given(fragments, st.sampled_from([" ", "", "\n"]))
def test_any_sequence_of_sql_words_is_parsed_without_an_exception(parts: list[str], between: str) -> None:
    text = between.join(parts)
    check_places(text, parse_application(text))


@settings(max_examples=40)
@given(st.integers(0, len(EXAMPLE)), st.integers(0, 30), st.text(max_size=3))
def test_any_change_of_the_example_is_parsed_without_an_exception(start: int, length: int, inserted: str) -> None:
    text = EXAMPLE[:start] + inserted + EXAMPLE[start + length :]
    check_places(text, parse_application(text))


def test_the_example_has_no_problems() -> None:
    application = parse_application(EXAMPLE, "emergency.sql")
    assert [str(problem) for problem in application.problems] == []
    assert len(application.statements) == STATEMENTS


def grammar_keywords() -> list[Token]:
    """The keywords of the grammar in the example, outside the queries. No other word is valid in their place."""
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
    ]


@settings(max_examples=30)
@given(st.sampled_from(grammar_keywords()))
def test_misspelt_keyword_is_reported_only_at_its_position(token: Token) -> None:
    text = EXAMPLE[: token.start] + "zzz" + EXAMPLE[token.end :]
    (problem,) = parse_application(text).problems
    assert problem.position == Position.of(EXAMPLE, token.start)
    assert token.upper in (problem.expected or "")


@settings(max_examples=40)
@given(st.integers(0, len(TOKENS) - 1), st.sampled_from(["\n", "\n\n  ", " /* ; */ ", " -- ;\n", "\t"]))
def test_blanks_and_comments_between_tokens_change_only_positions(index: int, space: str) -> None:
    before, token = TOKENS[index - 1], TOKENS[index]
    glued = index > 0 and before.end == token.start
    text = EXAMPLE if glued else EXAMPLE[: token.start] + space + EXAMPLE[token.start :]
    assert parse_application(text).problems == ()


@pytest.mark.parametrize("marker", ["kind", "radius_m", "user"])
def test_unknown_marker_is_reported_at_its_colon(marker: str) -> None:
    for offset in (i for i in range(len(EXAMPLE)) if EXAMPLE.startswith(f":{marker}", i)):
        text = EXAMPLE[:offset] + ":zz" + EXAMPLE[offset + len(marker) + 1 :]
        places = [p.position for p in parse_application(text).problems if p.code == "unknown-parameter"]
        assert places == [Position.of(EXAMPLE, offset)]


def test_names_and_strings_are_not_keywords() -> None:
    assert {token.upper for token in TOKENS if token.kind is not TokenKind.WORD} == {""}
