"""The key index behaves like a set across flushes, merges, expiry and reopening."""

from __future__ import annotations

import errno
import os
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tocsin.cluster.feed import keyindex
from tocsin.cluster.feed.keyindex import KeyIndex

SECOND_US = 1_000_000


def digest(number: int) -> bytes:
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def run_lengths(index: KeyIndex) -> list[int]:
    return [len(run) for run in index._runs]


def digests(*numbers: int) -> list[bytes]:
    return [digest(number) for number in numbers]


def test_key_is_seen_in_memory_in_a_run_and_after_reopening(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path)
    index.add(digests(1, 2), 0)
    assert index.seen(digests(1, 3, 2), 0).tolist() == [True, False, True]
    index.flush(covers=77, now_us=0)
    assert index.keys_in_memory == 0
    assert index.seen(digests(1, 3, 2), 0).tolist() == [True, False, True]
    again = KeyIndex(tmp_path)
    assert again.covers == 77
    assert again.seen(digests(1, 3, 2), 0).tolist() == [True, False, True]


def test_unflushed_key_is_not_covered_after_reopening(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path)
    index.add(digests(1), 0)
    again = KeyIndex(tmp_path)
    assert again.covers == 0
    assert not again.seen(digests(1), 0).any()


def test_key_expires_at_its_retention_even_beside_younger_keys(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, retention_s=10)
    index.add(digests(1), 0)
    index.add(digests(2), 5 * SECOND_US)
    for _ in range(2):
        assert index.seen(digests(1, 2), 10 * SECOND_US).tolist() == [True, True]
        assert index.seen(digests(1, 2), 10 * SECOND_US + 1).tolist() == [False, True]
        index.flush(covers=1, now_us=0)


def test_key_accepted_again_after_its_retention_starts_a_new_one(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, retention_s=10)
    for accepted_at_us in (0, 20 * SECOND_US):
        index.add(digests(1), accepted_at_us)
        index.flush(covers=1, now_us=accepted_at_us)
    assert index.seen(digests(1), 25 * SECOND_US).all()


def test_digests_that_share_a_half_or_end_in_zeros_differ(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path)
    alike = [b"\x01" * 8 + number.to_bytes(8, "big") for number in range(5)]
    zeros = [b"\x00" * 16, b"\x00" * 15 + b"\x01", b"\x01" + b"\x00" * 15]
    index.add([*alike[::2], zeros[0], zeros[2]], 0)
    index.flush(covers=1, now_us=0)
    assert index.seen([*alike, *zeros], 0).tolist() == [True, False, True, False, True, True, False, True]


def test_merging_keeps_all_keys_and_the_number_of_runs_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyindex, "_MERGE_CHUNK", 300)  # several ranges a merge, as with millions of keys
    index = KeyIndex(tmp_path)
    for batch in range(60):
        index.add(digests(*range(batch * 50, batch * 50 + 50)), 0)
        index.flush(covers=batch, now_us=0)
        index.merge(now_us=0)
        assert len(run_lengths(index)) <= 12
    assert sum(run_lengths(index)) == 3000
    assert len(list(tmp_path.glob("*.keys"))) == len(run_lengths(index))
    assert index.seen(digests(*range(3000)), 0).all()
    assert not index.seen(digests(*range(3000, 6000)), 0).any()


def test_merge_deletes_expired_runs_and_drops_expired_keys(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, retention_s=10)
    for number in range(4):
        index.add(digests(number), number * 5 * SECOND_US)
        index.flush(covers=number, now_us=0)
    index.merge(now_us=13 * SECOND_US)
    assert sum(run_lengths(index)) == 3
    index.merge(now_us=100 * SECOND_US)
    assert run_lengths(index) == []
    assert list(tmp_path.glob("*.keys")) == []


def test_flush_on_a_full_disk_keeps_the_keys_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = KeyIndex(tmp_path)
    index.add(digests(1), 0)

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        index.flush(covers=5, now_us=0)
    monkeypatch.undo()
    index.add(digests(2), 0)
    assert index.covers == 0
    assert index.seen(digests(1, 2, 3), 0).tolist() == [True, True, False]
    index.flush(covers=6, now_us=0)
    assert KeyIndex(tmp_path).seen(digests(1, 2, 3), 0).tolist() == [True, True, False]
    assert list(tmp_path.glob("*.tmp")) == []


def test_filter_separates_new_keys_from_known_ones(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path)
    assert index.expect(digests(5, 7)) == []
    index.add(digests(5, 7), 0)
    index.flush(covers=1, now_us=0)
    for opened in (index, KeyIndex(tmp_path)):
        candidates = opened.expect(digests(*range(1000)))
        assert {5, 7} <= set(candidates)
        assert len(candidates) < 10
        assert len(opened.expect(digests(*range(1000)))) == 1000


def test_files_outside_the_manifest_are_deleted_on_opening(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path)
    index.add(digests(1), 0)
    index.flush(covers=1, now_us=0)
    for name in ("000000000009.keys", "000000000010.tmp"):
        (tmp_path / name).write_bytes(b"half written")
    assert KeyIndex(tmp_path).seen(digests(1), 0).all()
    assert len(list(tmp_path.iterdir())) == 2


NUMBERS = st.lists(st.integers(0, 60), min_size=1, max_size=12)


class IndexAgainstDict(RuleBasedStateMachine):
    """Compares random batches, flushes, merges, reopening and time steps with a dict of number -> accepted at."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(self.fresh.mktemp("keys"))
        self.now_us = 0
        self.durable: dict[int, int] = {}
        self.log: list[tuple[list[int], int]] = []
        self.open()

    fresh: pytest.TempPathFactory

    def open(self) -> None:
        self.index = KeyIndex(self.directory, retention_s=30, memory_keys=10)
        for numbers, at_us in self.log[self.index.covers :]:
            self.index.expect(digests(*numbers))
            self.index.add(digests(*numbers), at_us)

    @rule(numbers=NUMBERS)
    def accept(self, numbers: list[int]) -> None:
        candidates = {numbers[position] for position in self.index.expect(digests(*numbers))}
        horizon_us = self.now_us - 30 * SECOND_US
        assert candidates >= {number for number in numbers if self.durable.get(number, -(1 << 60)) >= horizon_us}
        self.index.add(digests(*numbers), self.now_us)
        self.log.append((numbers, self.now_us))
        self.durable.update(dict.fromkeys(numbers, self.now_us))

    @rule()
    def flush(self) -> None:
        self.index.flush(covers=len(self.log), now_us=self.now_us)

    @rule()
    def merge(self) -> None:
        self.index.merge(self.now_us)

    @rule(seconds=st.integers(1, 20))
    def wait(self, seconds: int) -> None:
        self.now_us += seconds * SECOND_US

    @precondition(lambda self: self.log)
    @rule()
    def crash_and_reopen(self) -> None:
        self.open()

    @invariant()
    def answers_like_a_dict(self) -> None:
        if not hasattr(self, "index"):
            return
        horizon_us = self.now_us - 30 * SECOND_US
        expected = [self.durable.get(number, -(1 << 60)) >= horizon_us for number in range(61)]
        assert self.index.seen(digests(*range(61)), self.now_us).tolist() == expected


def test_any_history_gives_the_same_answers_as_a_dict(tmp_path_factory: pytest.TempPathFactory) -> None:
    IndexAgainstDict.fresh = tmp_path_factory
    machine: Any = IndexAgainstDict.TestCase
    machine.settings = settings(max_examples=40, stateful_step_count=25)
    machine().runTest()
