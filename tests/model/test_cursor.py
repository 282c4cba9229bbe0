"""Cursors are written, read, ordered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.model.cursor import ROWS_PER_EXECUTION, Cursor, execution_of, offset_of


@given(st.integers(0, 2**31), st.integers(0, 2**53))
def test_a_cursor_reads_back(epoch: int, offset: int) -> None:
    assert Cursor.parse(str(Cursor(epoch, offset))) == Cursor(epoch, offset)


@pytest.mark.parametrize("text", ["", "5", "-", "1-", "-1", "a-b", "1-2-3", "1--2", "²-1", " 1-2"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    assert Cursor.parse(text) is None


def test_results_of_an_execution_with_very_many_rows_run_into_the_next_number() -> None:
    assert execution_of(offset_of(7, ROWS_PER_EXECUTION - 1)) == 7
    assert offset_of(7, ROWS_PER_EXECUTION) == offset_of(8)
    assert offset_of(2**33 - 1, ROWS_PER_EXECUTION - 1) < 2**53
