"""The feed gateway of one dataset: from a publisher's request to records on disk, each stored once.

`accept` checks, removes repeats and appends to the feed log; `sync` makes durable what was accepted before it. Many
requests share one `sync` and its fate: each belongs to a `SyncGroup`, which says whether it is stored. Its answer may
be given when it is; if it is not, the publisher must be told so, and its retry is then no repeat. Whoever drives this
calls `maintain` every few seconds, from a thread that may block.

No HTTP and no threads in here. `accept`, `sync`, `maintain`, `ingested` and `close` may be called from different
threads at the same time: `accept` runs one at a time and goes on while a `sync` runs; syncs wait for each other, so
does upkeep.

What is in memory: frames not yet written, keys not yet in a file (`FeedLimits.memory_keys`, twice that while a flush
runs), one request being read. The log alone is the truth; keys and answers are rebuilt from it after a crash.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from tocsin.cluster.cap.alert import Alert
from tocsin.cluster.cap.desk import AlertDesk, AlertRecords, digest_of
from tocsin.cluster.feed.answertable import AnswerTable, StoredAnswer
from tocsin.cluster.feed.feedlog import FeedLog, FeedLogCorrupt, FeedLogWriteFailed, Frame
from tocsin.cluster.feed.keyindex import KeyIndex
from tocsin.cluster.feed.outcomes import (
    Accepted,
    Backlogged,
    FeedLimits,
    KeyConflict,
    Refused,
    TooLarge,
    Unavailable,
)
from tocsin.cluster.feed.records import Decoded, Malformed, RecordCodec, RecordForm, Refusal, TooMany
from tocsin.cluster.feed.tap import RecordRing
from tocsin.model.entities import Dataset, DatasetKind

__all__ = [
    "Accepted",
    "Backlogged",
    "FeedGateway",
    "FeedLimits",
    "KeyConflict",
    "Malformed",
    "RecordForm",
    "Refusal",
    "Refused",
    "SyncGroup",
    "TooLarge",
    "Unavailable",
]

_MAX_IDEMPOTENCY_KEY_CHARACTERS = 255
_RECOVERY_STEP_BYTES = 16 << 20
_MAX_UNSTORED_ANSWERS = 10_000
_RETRY_AFTER_S = (1, 60)
_ALERTS_UNAVAILABLE = Unavailable("the disk refused to remember the alert; try again")


_CLOSED = Unavailable("this dataset takes no more records: it was dropped, or the data cluster stops; try again")


@dataclass(slots=True, eq=False)
class SyncGroup:
    """Requests that are stored together or not at all, and what they will have left behind once they are."""

    keys: dict[bytes, int] = field(default_factory=dict)
    """Digest -> accepted at, in µs."""
    answers: dict[bytes, StoredAnswer] = field(default_factory=dict)
    stored: bool | None = None
    """None until a sync has decided it. A request that only repeats another one shares the fate of its own group, which
    is never better than that of the group the other one is in."""


class FeedGateway:
    def __init__(self, dataset: Dataset, directory: Path, limits: FeedLimits, now_s: Callable[[], float]) -> None:
        if dataset.kind is DatasetKind.STATIC:
            raise ValueError(f"{dataset.name} is STATIC: it is loaded from a file and takes no records")
        self.dataset = dataset
        self.limits = limits
        self._now_s = now_s
        self._removes_repeats = dataset.kind is DatasetKind.STREAM and bool(dataset.key)
        self._answers_retention_s = limits.idempotency_retention_s if dataset.retain_s is None else dataset.retain_s
        self._state_lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self._upkeep_lock = threading.Lock()
        self._fresh, self._syncing = SyncGroup(), SyncGroup()
        self._unstored: dict[bytes, StoredAnswer] = {}
        self._closed = False
        self._records_end = 0
        """Of the log: no frame after it has records."""
        self.recent = RecordRing()
        """For whoever looks on; of no consequence to what is stored."""
        self.log_directory = directory / "log"
        self._log = FeedLog(self.log_directory, limits.segment_bytes)
        self._index = KeyIndex(directory / "keys", dataset.retain_s, limits.memory_keys)
        seed = self._index.seed if self._removes_repeats else None
        self._codec = RecordCodec(dataset.schema, dataset.key, limits.records, digest_seed=seed)
        self._alerts = AlertDesk(dataset, directory)
        self._answers = AnswerTable(directory / "answers.db")
        self._ingested_file = _PositionFile(directory / "ingested")
        try:
            self._ingested = min(max(self._ingested_file.read(), self._log.start), self._log.durable_end)
            self._ingested_at_s, self._drain_bytes_per_s = now_s(), 0.0
            self._committed = self._records_end = self._log.durable_end
            self._rebuild()
        except BaseException:
            self.close()
            raise

    @property
    def durable_end(self) -> int:
        return self._log.durable_end

    @property
    def backlog_bytes(self) -> int:
        """Accepted and not yet in the dataset."""
        return self._log.tail - self._ingested

    def accept(self, body: bytes, form: RecordForm, idempotency_key: str | None = None) -> Accepted | Refused:
        """Check a request and append its new records. Nothing is promised before the next `sync`."""
        return self.accept_into_group(body, form, idempotency_key)[0]

    def accept_into_group(
        self, body: bytes, form: RecordForm, idempotency_key: str | None = None
    ) -> tuple[Accepted | Refused, SyncGroup]:
        """As `accept`; also who else is stored if this request is. Means nothing to a request that is refused."""
        group = self._fresh
        if len(body) > self.limits.body_bytes:
            return TooLarge("body bytes", self.limits.body_bytes), group
        if idempotency_key is not None and not 0 < len(idempotency_key) <= _MAX_IDEMPOTENCY_KEY_CHARACTERS:
            return Malformed(f"an Idempotency-Key has 1 to {_MAX_IDEMPOTENCY_KEY_CHARACTERS} characters"), group
        alert = self._alerts.read(body) if form is RecordForm.CAP else None
        if isinstance(alert, Malformed):
            return alert, group
        with self._state_lock:
            return self._accept(body, form, idempotency_key, alert), self._fresh

    def _accept(
        self, body: bytes, form: RecordForm, idempotency_key: str | None, alert: Alert | None
    ) -> Accepted | Refused:
        if self._closed:
            return _CLOSED
        if self._is_behind_with_upkeep():
            return Unavailable("the disk refused to write; try again")
        now_us = int(self._now_s() * 1e6)
        question = None if idempotency_key is None else _question(idempotency_key, body)
        if alert is not None and not self._removes_repeats:
            question = _alert_question(alert)
        replayed = self._replay(*question, now_us) if question else None
        return replayed or self._accept_new(body, form, question, now_us, alert)

    def sync(self) -> int:
        """Decide what becomes of whatever was accepted before this call; the durable end. Blocks for an fsync.

        Raises `FeedLogWriteFailed` when the disk refuses: then no request whose group is undecided is stored, those
        accepted while this ran included.
        """
        with self._sync_lock:
            with self._state_lock:
                if self._closed:
                    raise FeedLogWriteFailed(f"{self.dataset.name}: {_CLOSED.reason}")
                self._syncing, self._fresh = self._fresh, SyncGroup()
                upto = self._log.tail
            try:
                self._log.sync(upto)
            except BaseException:
                with self._state_lock:
                    # Requests that came in meanwhile may be repeats of what is now lost, or follow it in the log.
                    self._drop_undecided()
                raise
            with self._state_lock:
                self._syncing.stored = True
                self._index.add(self._syncing.keys)
                self._unstored.update(self._syncing.answers)
                self._committed, self._syncing = upto, SyncGroup()
            if self._unstored:
                self._store_answers()
        if self._index.keys_in_memory >= 2 * self.limits.memory_keys:
            # Nobody else did. A failure here must not look like one of the sync: the records are durable.
            with suppress(OSError, sqlite3.Error):
                self.maintain()
        return upto

    def _drop_undecided(self) -> None:
        self._fresh.stored = self._syncing.stored = False
        self._fresh, self._syncing = SyncGroup(), SyncGroup()
        self._log.drop_buffered()
        self._records_end = min(self._records_end, self._log.tail)

    def maintain(self) -> None:
        """Upkeep, to be called now and then after answers went out: flush and merge keys, forget what expired, trim."""
        with self._upkeep_lock:
            if self._closed:
                return
            self._pass_answers()
            now_us = int(self._now_s() * 1e6)
            if self._removes_repeats:
                behind_bytes = self._ingested - self._index.covers
                if self._index.is_full() or behind_bytes > self.limits.segment_bytes:
                    self._index.flush(self._committed, now_us)
                self._index.merge(now_us)
            self._answers.forget(self._answers_horizon_us(now_us))
            if self.dataset.retain_s is not None:
                self._alerts.forget(now_us - int(self.dataset.retain_s * 1e6))
            self._trim()

    def ingested(self, position: int) -> None:
        """Records before `position` are safely in the dataset: they are backlog no more, and the log may be trimmed.

        Trimming stops where the key index or the answers still need the log to come back after a crash.
        """
        if position > self._log.durable_end:
            raise ValueError(f"position {position} is beyond the durable end {self._log.durable_end}")
        with self._upkeep_lock:
            gained_bytes = position - self._ingested
            if gained_bytes <= 0 or self._closed:
                return
            now_s = self._now_s()
            elapsed_s = max(now_s - self._ingested_at_s, 0.001)
            self._drain_bytes_per_s += 0.3 * (gained_bytes / elapsed_s - self._drain_bytes_per_s)
            self._ingested, self._ingested_at_s = position, now_s
            self._ingested_file.write(position)
            self._trim()

    def close(self) -> None:
        """What was accepted and not synced is not stored. Waits for a sync or upkeep that is under way."""
        with self._upkeep_lock, self._sync_lock, self._state_lock:
            if not self._closed:
                self._closed = True
                self._drop_undecided()
                self._log.close()
                self._alerts.close()
                self._answers.close()
                self._ingested_file.close()

    def _accept_new(
        self, body: bytes, form: RecordForm, question: tuple[bytes, bytes] | None, now_us: int, alert: Alert | None
    ) -> Accepted | Refused:
        backlog_bytes = self.backlog_bytes
        if backlog_bytes and backlog_bytes + len(body) > self.limits.backlog_bytes:
            return Backlogged(self._retry_after_s(backlog_bytes + len(body) - self.limits.backlog_bytes))
        records = None if alert is None else self._alert_records(alert)
        if isinstance(records, AlertRecords):
            body, form = records.body, RecordForm.JSON
        elif records is not None:
            return records
        decoded = self._codec.decode(body, form)
        if isinstance(decoded, Malformed):
            return decoded
        if isinstance(decoded, TooMany):
            return TooLarge("records", decoded.limit)
        if _has_longer_line(decoded.lines, self.limits.record_bytes):
            return TooLarge("record bytes", self.limits.record_bytes)
        payload, count, keys = self._without_repeats(decoded, now_us)
        answer = Accepted(
            accepted=count,
            duplicates=decoded.count - count,
            refused=decoded.refusals[: self.limits.refusals_listed],
            refused_total=len(decoded.refusals),
            notices=[] if records is None else records.notices,
        )
        if not count and question is None:
            return replace(answer, position=self._log.tail)
        if records is not None:
            try:
                self._alerts.remember(records, now_us)
            except sqlite3.Error:
                return _ALERTS_UNAVAILABLE
        meta: dict[str, Any] = {"accepted_at_us": now_us}
        if question is not None:
            key, body_digest = question
            # In the frame, so that records and answer become durable together or not at all.
            meta["idempotency"] = {"key": key.hex(), "body": body_digest.hex(), "answer": msgspec.to_builtins(answer)}
        answer = replace(answer, position=self._log.append(payload, count, meta))
        if count:
            self._records_end = answer.position
            self.recent.add(payload)
        self._fresh.keys.update(keys)
        if question is not None:
            self._fresh.answers[question[0]] = StoredAnswer(*question, answer, now_us)
        return answer

    def _alert_records(self, alert: Alert) -> AlertRecords | Refused:
        try:
            return self._alerts.records(alert)
        except sqlite3.Error:
            return _ALERTS_UNAVAILABLE

    def _without_repeats(self, decoded: Decoded, now_us: int) -> tuple[bytes, int, dict[bytes, int]]:
        """(payload, count, keys) of the records whose key is new."""
        digests = decoded.digests
        keys = dict.fromkeys(digests, now_us)
        if not keys:
            return decoded.lines, decoded.count, keys
        candidates = self._index.expect(digests)
        stored = self._index.seen([digests[each] for each in candidates], now_us).tolist()
        unsynced = (self._fresh.keys, self._syncing.keys)
        repeats = {
            digest
            for digest, before in zip((digests[each] for each in candidates), stored, strict=True)
            if before or digest in unsynced[0] or digest in unsynced[1]
        }
        if not repeats and len(keys) == len(digests):
            return decoded.lines, decoded.count, keys
        lines: dict[bytes, bytes] = {}
        for line, digest in zip(decoded.lines.split(b"\n"), digests, strict=True):
            if digest not in repeats:
                lines.setdefault(digest, line)
        return b"\n".join(lines.values()), len(lines), dict.fromkeys(lines, now_us)

    def _replay(self, key: bytes, body_digest: bytes, now_us: int) -> Accepted | KeyConflict | None:
        """The answer this Idempotency-Key had before, if any."""
        found = self._fresh.answers.get(key) or self._syncing.answers.get(key) or self._unstored.get(key)
        found = found or self._answers.find(key, self._answers_horizon_us(now_us))
        if found is None:
            return None
        return replace(found.accepted, replayed=True) if found.body == body_digest else KeyConflict()

    def _store_answers(self) -> None:
        with self._state_lock:
            unstored, committed = dict(self._unstored), self._committed
        try:
            self._answers.store(unstored.values(), committed)
        except sqlite3.Error:
            return  # they stay in memory and in the log; the next sync tries again
        with self._state_lock:
            for key, answer in unstored.items():
                if self._unstored.get(key) is answer:
                    del self._unstored[key]

    def _pass_answers(self) -> None:
        """Requests of repeats alone leave frames with their answers and no records. Spark has no use for them and never
        reports them: without this they would be backlog until the next record, and in the end keep that out."""
        with self._state_lock:
            if self._records_end <= self._ingested < self._committed:
                self._ingested = self._committed
                self._ingested_file.write(self._ingested)

    def _trim(self) -> None:
        needed_from = min(self._ingested, self._index.covers if self._removes_repeats else self._ingested)
        if needed_from - self._log.start < self.limits.segment_bytes:
            return
        with self._state_lock:
            unstored, committed = dict(self._unstored), self._committed
        try:
            self._answers.store(unstored.values(), committed)
            self._answers.make_durable()
        except sqlite3.Error:
            return
        self._log.trim(min(needed_from, committed))

    def _rebuild(self) -> None:
        """Add to index and answers what the log holds beyond them. At most a table full of keys, by construction."""
        known = [self._answers.covers, *([self._index.covers] if self._removes_repeats else [])]
        if max(known) > self._log.durable_end:
            reason = f"records up to {max(known)} were durable; to accept their loss, delete keys/ and answers.db too"
            raise FeedLogCorrupt(str(self.log_directory), self._log.durable_end, reason)
        position = max(min(known), self._log.start)
        while position < self._log.durable_end:
            answers: list[StoredAnswer] = []
            frames, position = self._log.read(position, _RECOVERY_STEP_BYTES)
            for frame in frames:
                if self._removes_repeats and frame.count and frame.position >= self._index.covers:
                    digests = self._codec.digests(frame.payload)
                    self._index.expect(digests)
                    self._index.add(dict.fromkeys(digests, frame.meta["accepted_at_us"]))
                if "idempotency" in frame.meta and frame.position >= self._answers.covers:
                    answers.append(_stored_answer(frame))
            if self._index.is_full():
                self._index.flush(position, int(self._now_s() * 1e6))
            self._answers.store(answers, position)

    def _is_behind_with_upkeep(self) -> bool:
        """Keys or answers pile up in memory, since the disk takes the log but not their files."""
        too_many_keys = self._index.keys_in_memory >= 4 * self.limits.memory_keys + self.limits.records
        return too_many_keys or len(self._unstored) > _MAX_UNSTORED_ANSWERS

    def _answers_horizon_us(self, now_us: int) -> int:
        return now_us - int(self._answers_retention_s * 1e6)

    def _retry_after_s(self, excess_bytes: int) -> int:
        """How long the excess takes at the pace the dataset last took records."""
        shortest, longest = _RETRY_AFTER_S
        if self._drain_bytes_per_s <= 0:
            return 5
        return max(shortest, min(longest, round(excess_bytes / self._drain_bytes_per_s + 0.5)))


def _question(idempotency_key: str, body: bytes) -> tuple[bytes, bytes]:
    key = idempotency_key.encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=16).digest(), blake2b(body, digest_size=32).digest()


def _alert_question(alert: Alert) -> tuple[bytes, bytes]:
    """An alert is its own Idempotency-Key where the dataset does not know repeats by their KEY."""
    digest = digest_of(alert)
    return digest[:16], digest


def _stored_answer(frame: Frame) -> StoredAnswer:
    kept = frame.meta["idempotency"]
    answer = replace(msgspec.convert(kept["answer"], Accepted), position=frame.next_position)
    return StoredAnswer(bytes.fromhex(kept["key"]), bytes.fromhex(kept["body"]), answer, frame.meta["accepted_at_us"])


def _has_longer_line(lines: bytes, limit_bytes: int) -> bool:
    """Without looking at every line: from the start of one, the last newline within the limit starts the next."""
    start = 0
    while len(lines) - start > limit_bytes:
        newline = lines.rfind(b"\n", start, start + limit_bytes + 1)
        if newline < 0:
            return True
        start = newline + 1
    return False


class _PositionFile:
    """A number that survives the process. Not fsynced: the Spark side reports its position again when it starts."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def read(self) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 0), "little")

    def write(self, position: int) -> None:
        os.pwrite(self._fd, position.to_bytes(8, "little"), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
