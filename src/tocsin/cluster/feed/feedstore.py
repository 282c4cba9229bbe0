"""The files of one dataset's feed: log, key index, answer table, and the position that ingestion has reached.

The log is the only truth. After a crash the store rebuilds the keys and answers that their files lack from the log; the
log is trimmed only where neither ingestion nor those files need it. No request handling and no locks around its own
fields: `gateway.py` drives it under its locks.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from tocsin.cluster.feed.answertable import AnswerTable, StoredAnswer
from tocsin.cluster.feed.feedlog import FeedLog
from tocsin.cluster.feed.feedlog_reader import FeedLogCorrupt
from tocsin.cluster.feed.keyindex import KeyIndex
from tocsin.cluster.feed.outcomes import FeedLimits
from tocsin.cluster.feed.records import RecordCodec
from tocsin.model.entities import Dataset, DatasetKind

_RECOVERY_STEP_BYTES = 16 << 20
_MAX_WAITING_ANSWERS = 10_000
_RETRY_AFTER_S = (1, 60)
"""Shortest and longest time after which a publisher should retry."""


class FeedStore:
    def __init__(self, dataset: Dataset, directory: Path, limits: FeedLimits, now_s: Callable[[], float]) -> None:
        self._limits = limits
        self._now_s = now_s
        self.removes_repeats = dataset.kind is DatasetKind.STREAM and bool(dataset.key)
        self.log = FeedLog(directory / "log", limits.segment_bytes)
        self._committed = self.log.durable_end
        """Position up to which the keys and answers of the log are in `index` and `answers`."""
        self.records_end = self.log.durable_end
        """Position after the last frame with records."""
        self.index = KeyIndex(directory / "keys", dataset.retain_s, limits.memory_keys)
        seed = self.index.seed if self.removes_repeats else None
        self.codec = RecordCodec(dataset.schema, dataset.key, limits.records, digest_seed=seed)
        retention_s = limits.idempotency_retention_s if dataset.retain_s is None else dataset.retain_s
        self.answers = AnswerTable(directory / "answers.db", retention_s)
        self.ingested = _IngestedPosition(directory / "ingested", self.log, now_s)
        try:
            self._rebuild()
        except BaseException:
            self.close()
            raise

    def commit(
        self,
        keys: Iterable[tuple[Collection[bytes], int]],
        answers: Mapping[bytes, StoredAnswer],
        upto: int,
        cursors: Mapping[str, int] | None = None,
    ) -> None:
        """Add the keys, answers and cursors of recordings of the frames before `upto`, which are durable now.

        The caller serialises this with `skip_frames_without_records`.
        """
        for digests, accepted_at_us in keys:
            self.index.add(digests, accepted_at_us)
        self.answers.add(answers, upto, cursors)
        self._committed = upto

    def flush_and_merge_keys(self, now_us: int) -> None:
        if self.removes_repeats:
            behind_bytes = self.ingested.position - self.index.covers
            if self.index.is_full() or behind_bytes > self._limits.segment_bytes:
                self.index.flush(self._committed, now_us)
            self.index.merge(now_us)

    def skip_frames_without_records(self) -> None:
        """Count frames that hold only answers as ingested.

        A request that only repeats records leaves such a frame. Spark never reports it. Without this step these frames
        stay in the backlog until the next record, and a full backlog would refuse that record.
        """
        if self.records_end <= self.ingested.position < self._committed:
            self.ingested.skip_to(self._committed)

    def trim(self) -> None:
        """Delete the segments of the log that ingestion, the key index and the answers no longer need."""
        ingested = self.ingested.position
        needed_from = min(ingested, self.index.covers) if self.removes_repeats else ingested
        if needed_from - self.log.start < self._limits.segment_bytes:
            return
        try:
            answers_end = self.answers.store_waiting()
            self.answers.make_durable()
        except sqlite3.Error:
            return
        self.log.trim(min(needed_from, answers_end))

    def is_behind_with_upkeep(self) -> bool:
        """True if too many keys or answers are in memory because the disk takes the log but not their files."""
        too_many_keys = self.index.keys_in_memory >= 4 * self._limits.memory_keys + self._limits.records
        return too_many_keys or self.answers.waiting > _MAX_WAITING_ANSWERS

    def close(self) -> None:
        self.log.close()
        self.answers.close()
        self.ingested.close()

    def _rebuild(self) -> None:
        """Add the keys and answers of the log that the index and the answer table lack: at most one full key table."""
        covered = [self.answers.covers, *([self.index.covers] if self.removes_repeats else [])]
        if max(covered) > self.log.durable_end:
            reason = f"records up to {max(covered)} were durable; to accept their loss, delete keys/ and answers.db too"
            raise FeedLogCorrupt(str(self.log.directory), self.log.durable_end, reason)
        position = max(min(covered), self.log.start)
        while position < self.log.durable_end:
            answers: list[StoredAnswer] = []
            cursors: dict[str, int] = {}
            frames, position = self.log.read(position, _RECOVERY_STEP_BYTES)
            for frame in frames:
                if self.removes_repeats and frame.count and frame.position >= self.index.covers:
                    digests = self.codec.digests(frame.payload)
                    self.index.expect(digests)
                    self.index.add(digests, frame.meta["accepted_at_us"])
                if "idempotency" in frame.meta and frame.position >= self.answers.covers:
                    answers.append(StoredAnswer.of_frame(frame))
                if "recorded" in frame.meta and frame.position >= self.answers.covers:
                    cursors.update([frame.meta["recorded"]])
            if self.index.is_full():
                self.index.flush(position, int(self._now_s() * 1e6))
            self.answers.store(answers, position, cursors)
        self.answers.add({}, self.log.durable_end)


class _IngestedPosition:
    """The log position up to which records are in the dataset, and how fast it advances.

    A file keeps the position across restarts. It is not fsynced: the Spark side reports its position when it starts.
    """

    def __init__(self, path: Path, log: FeedLog, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        stored = int.from_bytes(os.pread(self._fd, 8, 0), "little")
        self.position = min(max(stored, log.start), log.durable_end)
        self._advanced_at_s, self._bytes_per_s = now_s(), 0.0

    def advance(self, position: int) -> None:
        now_s = self._now_s()
        elapsed_s = max(now_s - self._advanced_at_s, 0.001)
        self._bytes_per_s += 0.3 * ((position - self.position) / elapsed_s - self._bytes_per_s)
        self._advanced_at_s = now_s
        self.skip_to(position)

    def skip_to(self, position: int) -> None:
        """Set the position without an effect on the measured speed."""
        self.position = position
        os.pwrite(self._fd, position.to_bytes(8, "little"), 0)

    def retry_after_s(self, excess_bytes: int) -> int:
        """Seconds that ingestion of the excess takes at the measured speed; 5 s if no speed is known."""
        shortest, longest = _RETRY_AFTER_S
        if self._bytes_per_s <= 0:
            return 5
        return max(shortest, min(longest, round(excess_bytes / self._bytes_per_s + 0.5)))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
