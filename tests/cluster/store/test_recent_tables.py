"""The latest tables stay in memory up to a bound, whose sum is kept and not computed again."""

from __future__ import annotations

import pyarrow as pa

from tocsin.cluster.store.recent_tables import COLUMN_BYTES, RecentTables

SIZE = COLUMN_BYTES + 8 * 100
"""A table of 100 numbers."""


def table(rows: int) -> pa.Table:
    return pa.table({"n": pa.array(range(rows), pa.int64())})


def test_oldest_tables_leave_when_the_bound_is_passed() -> None:
    recent: RecentTables[int] = RecentTables(3 * SIZE + 1)
    for key in range(5):
        recent.add(key, table(100))
    assert [key for key in range(5) if recent.get(key) is not None] == [2, 3, 4]
    assert recent.size_bytes == 3 * SIZE


def test_small_tables_count_with_the_objects_around_their_values() -> None:
    """An hour of tables with one row each kept hundreds of MiB that nothing counted."""
    recent: RecentTables[int] = RecentTables(10 * SIZE)
    for key in range(1_000):
        recent.add(key, table(1))
    assert sum(recent.get(key) is not None for key in range(1_000)) <= 13


def test_replaced_and_removed_tables_do_not_count() -> None:
    recent: RecentTables[int] = RecentTables(SIZE)
    recent.add(1, table(60))
    recent.add(1, table(20))
    assert recent.size_bytes == COLUMN_BYTES + 8 * 20
    recent.remove(1)
    recent.remove(1)
    assert recent.size_bytes == 0 and recent.get(1) is None


def test_table_above_the_bound_is_not_kept() -> None:
    recent: RecentTables[int] = RecentTables(SIZE)
    recent.add(1, table(101))
    assert recent.get(1) is None and recent.size_bytes == 0
