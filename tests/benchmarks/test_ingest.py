"""`bench ingest`: the plain writer syncs exactly as often as the server did for the same bodies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tocsin.benchmarks.ingest import _parse_and_append, group_sizes
from tocsin.benchmarks.shared.posting import IngestRound


@given(st.integers(1, 2_000), st.integers(1, 2_000))
@example(800, 467)  # bodies // syncs is 1: the plain writer once called 801 fsyncs here
@example(800, 219)
def test_bodies_are_divided_into_one_group_for_each_sync(bodies: int, syncs: int) -> None:
    sizes = group_sizes(bodies, syncs)
    assert len(sizes) == min(syncs, bodies)
    assert sum(sizes) == bodies
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("syncs", "expected"), [(1, 1), (7, 7), (10, 10)])
def test_plain_writer_stores_all_bodies_with_as_many_fsyncs_as_the_server(
    syncs: int, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "fdatasync", calls.append)
    work = IngestRound(number=1, records=95, batch=10)
    for _ in range(2):
        _parse_and_append(work, syncs, str(tmp_path))
    assert len(calls) == 2 * expected
    assert (tmp_path / "raw").read_bytes() == b"".join(work.bodies()) * 2
