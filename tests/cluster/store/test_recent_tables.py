"""The latest tables stay in memory up to a bound, whose sum is kept and not computed again."""

from __future__ import annotations

import pyarrow as pa

from tocsin.cluster.store.recent_tables import RecentTables


def table(rows: int) -> pa.Table:
    return pa.table({"n": pa.array(range(rows), pa.int64())})


def test_oldest_tables_leave_when_the_bound_is_passed() -> None:
    recent: RecentTables[int] = RecentTables(8 * 100)
    for key in range(5):
        recent.add(key, table(30))
    assert [key for key in range(5) if recent.get(key) is not None] == [2, 3, 4]
    assert recent.size_bytes == 3 * 8 * 30


def test_replaced_and_removed_tables_do_not_count() -> None:
    recent: RecentTables[int] = RecentTables(8 * 100)
    recent.add(1, table(60))
    recent.add(1, table(20))
    assert recent.size_bytes == 8 * 20
    recent.remove(1)
    recent.remove(1)
    assert recent.size_bytes == 0 and recent.get(1) is None


def test_table_above_the_bound_is_not_kept() -> None:
    recent: RecentTables[int] = RecentTables(8 * 100)
    recent.add(1, table(101))
    assert recent.get(1) is None and recent.size_bytes == 0
