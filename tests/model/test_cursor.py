"""Cursors: text and back, and the order of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.model.cursor import ROWS_PER_EXECUTION, Cursor, execution_of, offset_of


@given(st.integers(0, 2**31), st.integers(0, 2**53))
def test_cursor_survives_its_text_form(epoch: int, offset: int) -> None:
    assert Cursor.parse(str(Cursor(epoch, offset))) == Cursor(epoch, offset)


@pytest.mark.parametrize("text", ["", "5", "-", "1-", "-1", "a-b", "1-2-3", "1--2", "²-1", " 1-2"])
def test_text_that_is_no_cursor_is_rejected(text: str) -> None:
    assert Cursor.parse(text) is None


def test_rows_beyond_the_limit_take_the_next_execution_number() -> None:
    assert execution_of(offset_of(7, ROWS_PER_EXECUTION - 1)) == 7
    assert offset_of(7, ROWS_PER_EXECUTION) == offset_of(8)
    assert offset_of(2**33 - 1, ROWS_PER_EXECUTION - 1) < 2**53
