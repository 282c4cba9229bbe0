"""Spark's lexical rules in Python: comments become blanks, and texts that tokenizers read differently are unclear."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.sql.lexing import Lexeme, LexemeKind, disagreement, lex
from tocsin.cluster.sql.tokens import scan


@pytest.mark.parametrize(
    ("text", "blanked"),
    [
        ("a -- b\nc", "a     \nc"),
        ("a -- b \\\nc", "a       \nc"),
        ("a --\rb", "a   \rb"),
        ("a /* b */ c", "a         c"),
        ("a /* /* b */ */ c", "a               c"),
        ("a /*\n*/ c", "a   \n   c"),
        ("'-- a' b", "'-- a' b"),
        ("`/*` b", "`/*` b"),
        ("'\\'-- a' b", "'\\'-- a' b"),
        ("r'\\'-- a", "r'\\'    "),
        ("/*+ broadcast(r) */ a", "/*+ broadcast(r) */ a"),
        ("\ufeffa", " a"),
        ("a--", "a  "),
    ],
)
def test_comments_become_blanks_of_the_same_length(text: str, blanked: str) -> None:
    assert lex(text).text == blanked


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("'it''s' x", ["'it''s'", "x"]),
        (r"'a\'b' x", [r"'a\'b'", "x"]),
        (r"r'\' x", [r"r'\'", "x"]),
        ("`a``b` x", ["`a``b`", "x"]),
        ("X'1F' xr'a'", ["X'1F'", "xr", "'a'"]),
        ("a.b::INT, 1L, .5, 1e3D, :kind", ["a", "b", "INT", "kind"]),
        ("größe", ["größe"]),
    ],
)
def test_names_and_strings_are_found_as_spark_finds_them(text: str, names: list[str]) -> None:
    kinds = (LexemeKind.WORD, LexemeKind.STRING, LexemeKind.QUOTED)
    assert [text[part.start : part.end] for part in lex(text).lexemes if part.kind in kinds] == names


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("SELECT $$ a $$", 7),
        ("SELECT 1a", 7),
        ("SELECT a://b", 7),
        ("SELECT a\u00a0", 8),
        ("SELECT a\x00", 8),
        ("SELECT \u2018a\u2019", 7),
        ("SELECT /*+ 'a' */ b", 7),
        ("SELECT {a}", 7),
        ("SELECT a # b", 9),
        ("SELECT 1.5e", 7),
    ],
)
def test_text_that_tokenizers_read_differently_is_unclear(text: str, place: int) -> None:
    assert lex(text).unclear[0].start == place
    assert scan(text).unclear[0].start == place


def test_disagreement_is_the_first_place_that_differs() -> None:
    word, string = Lexeme(LexemeKind.WORD, 0, 3), Lexeme(LexemeKind.STRING, 4, 9)
    assert disagreement([word, string], [(0, 3), (4, 9)]) is None
    assert disagreement([word, string], [(0, 3), (4, 6), (6, 9)]) is None, "strings that touch are one string"
    assert disagreement([word, string], [(0, 3), (5, 9)]) == 4
    assert disagreement([word], [(0, 3), (7, 9)]) == 7


@given(st.text(alphabet="'\"`\\\n\r-/*+$abr1 .,()"))
def test_lexing_any_text_keeps_its_length_and_lines(text: str) -> None:
    lexed = lex(text)
    assert len(lexed.text) == len(text)
    assert [at for at, character in enumerate(lexed.text) if character in "\r\n"] == [
        at for at, character in enumerate(text) if character in "\r\n"
    ]
    again = lex(lexed.text)
    assert again.text == lexed.text, "no comment is left"
    assert all(first.end <= second.start for first, second in zip(lexed.lexemes, lexed.lexemes[1:], strict=False))
