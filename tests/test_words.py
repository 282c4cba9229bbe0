"""The crudest part of the plain-English rule of CONTRIBUTING.md: words that hide the subject, and overlong test names.

A reader must see which part acts: the broker, the subscriber, the gateway. A sentence with "who", "somebody" or "is
told" names none. The test cannot judge style; it only keeps these words from returning.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
HIDDEN_SUBJECT = re.compile(
    r"\b(who|whoever|whom|whomever|somebody|someone|nobody|anybody|anyone|everybody|everyone|lets? go|"
    r"(is|are|was|were|be) (told|asked)|about to be)\b",
    re.IGNORECASE,
)
WORDS_IN_A_TEST_NAME = 12


def test_prose_names_its_subject() -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{line} {match[0]!r} in: {text.strip()[:100]}"
        for path in _sources()
        for line, text in _prose(path.read_text(encoding="utf-8"))
        if (match := HIDDEN_SUBJECT.search(text))
    ]
    assert not hits, "\n".join(hits)


def test_test_names_have_at_most_twelve_words_and_name_their_subject() -> None:
    hits = []
    for path in _sources("tests"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                words = node.name.split("_")[1:]
                if len(words) > WORDS_IN_A_TEST_NAME or HIDDEN_SUBJECT.search(" ".join(words)):
                    hits.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not hits, "\n".join(hits)


def test_word_finder_sees_docstrings_and_comments_but_no_other_strings() -> None:
    text = '"""Ask who holds it."""\nx = "who"  # nobody reads this\ny = 1\n"""Told by whoever set it."""\n'
    assert [line for line, prose in _prose(text) if HIDDEN_SUBJECT.search(prose)] == [1, 4, 2]


def _sources(*folders: str) -> Iterator[Path]:
    for folder in folders or ("src", "tests", "examples", "scripts"):
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if path != Path(__file__))


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring line and of each comment. A string that stands alone counts as a docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from enumerate(node.value.value.splitlines(), node.lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
