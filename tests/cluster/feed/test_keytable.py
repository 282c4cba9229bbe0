"""The table of keys in memory answers like a dict, for keys that share a chain, a half or everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.cluster.feed import keytable
from tocsin.cluster.feed.keytable import KeyTable, halves

HALVES = st.sampled_from([0, 1, 1 << 18, 1 << 63, (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1)
"""The first three have two chains between them."""
DIGESTS = st.tuples(HALVES, HALVES).map(lambda pair: pair[0].to_bytes(8, "big") + pair[1].to_bytes(8, "big"))
BATCHES = st.lists(st.tuples(st.lists(DIGESTS, max_size=9), st.integers(-3, 9)), max_size=9)


def seen(table: KeyTable, digests: list[bytes], horizon_us: int) -> list[bool]:
    return list(table.seen(*halves(digests), horizon_us))


@pytest.mark.parametrize("waiting", [1, 5, 4096])
@given(older=BATCHES, newer=BATCHES, others=st.lists(DIGESTS, max_size=9), horizon_us=st.integers(-3, 9))
def test_table_answers_like_a_dict(
    waiting: int,
    older: list[tuple[list[bytes], int]],
    newer: list[tuple[list[bytes], int]],
    others: list[bytes],
    horizon_us: int,
) -> None:
    latest_us: dict[bytes, int] = {}
    tables = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(keytable, "_WAITING", waiting)
        for batches in (older, newer):
            table = KeyTable()
            for digests, at_us in batches:
                table.add(digests, at_us)
                latest_us |= {digest: max(at_us, latest_us.get(digest, at_us)) for digest in digests}
            assert len(table) == sum(len(digests) for digests, _ in batches)
            tables.append(table)
    queries = [*latest_us, *others]
    expected = [latest_us.get(digest, horizon_us - 1) >= horizon_us for digest in queries]
    apart = zip(*(seen(table, queries, horizon_us) for table in tables), strict=True)
    assert [any(answers) for answers in apart] == expected
    tables[0].extend(tables[1])
    assert seen(tables[0], queries, horizon_us) == expected


@given(before=BATCHES, after=st.lists(DIGESTS, max_size=9))
def test_cleared_table_knows_only_keys_added_later(before: list[tuple[list[bytes], int]], after: list[bytes]) -> None:
    table = KeyTable()
    for number, (digests, at_us) in enumerate(before):
        table.add(digests, at_us)
        if number % 2:
            seen(table, digests, 0)
    table.clear()
    assert len(table) == 0
    table.add(after, 1)
    queries = [*after, *(digest for digests, _ in before for digest in digests)]
    assert seen(table, queries, 0) == [digest in after for digest in queries]


def test_table_grows_and_keeps_order_and_times() -> None:
    table = KeyTable()
    digests = [number.to_bytes(16, "little") for number in range(10_000)]
    for start in range(0, 10_000, 100):
        table.add(digests[start : start + 100], start)
    first, last, at_us = table.part()
    assert (list(first), list(last)) == tuple(map(list, halves(digests)))
    assert list(at_us) == [number // 100 * 100 for number in range(10_000)]
    assert all(seen(table, digests, 0))
    assert sum(seen(table, digests, 5_000)) == 5_000
