"""The feed gateway of one dataset: takes a publisher's request and stores each record once.

`accept` checks a request, removes repeated records and appends the rest to the feed log; `prepare` and `append` are its
two halves, for callers that decode in another thread. `sync` fsyncs everything accepted before it. Many requests share
one `sync`: each belongs to a `SyncGroup`, which records whether it is stored. The caller may send a request's answer
once its group is stored. If its group is not stored, the caller must report the failure to the publisher, and a retry
of that request is not a repeat. The caller also runs `maintain` every few seconds, from a thread that may block.

No HTTP and no threads in here. Different threads may call `accept`, `sync`, `maintain`, `ingested` and `close` at the
same time. `prepare` parses a body without a lock. Only one `append` runs at a time, and does not wait for a running
`sync`. Only one `sync` runs at a time, and only one `maintain` or `ingested`.

In memory: frames not yet written, keys not yet in a file (`FeedLimits.memory_keys`, twice as many during a flush) and
one request. `FeedStore` has the files.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tocsin.cluster.cap.alert import Alert
from tocsin.cluster.cap.intake import AlertConflict, AlertIntake, AlertRecords, AlertRefused, alert_digest
from tocsin.cluster.cap.lineage import AlertLineage
from tocsin.cluster.feed.answertable import RequestDigests, StoredAnswer
from tocsin.cluster.feed.backlog import oldest_accepted_s
from tocsin.cluster.feed.feedlog_reader import FeedLogReader, FeedLogWriteFailed
from tocsin.cluster.feed.feedstore import FeedStore
from tocsin.cluster.feed.outcomes import (
    Accepted,
    Backlogged,
    CursorConflict,
    FeedLimits,
    KeyConflict,
    RecordedRange,
    Refused,
    TooLarge,
    Unavailable,
)
from tocsin.cluster.feed.recordforms import Malformed, RecordForm, RecordRefusal
from tocsin.cluster.feed.records import Decoded
from tocsin.cluster.feed.requests import RequestReader
from tocsin.cluster.feed.tap import RecordRing
from tocsin.model.entities import Dataset, DatasetKind

__all__ = [
    "Accepted",
    "Backlogged",
    "CursorConflict",
    "FeedGateway",
    "FeedLimits",
    "KeyConflict",
    "Malformed",
    "Outcome",
    "Prepared",
    "RecordForm",
    "RecordRefusal",
    "RecordedRange",
    "Refused",
    "SyncGroup",
    "TooLarge",
    "Unavailable",
]

ALERTS_FILE = "alerts.db"
_ALERTS_UNAVAILABLE = Unavailable("the disk refused to remember the alert; try again")
_RECORDING = Unavailable("earlier messages of this topic are being stored; try again")
_CLOSED = Unavailable("this dataset takes no more records: it was dropped, or the data cluster stops; try again")


@dataclass(slots=True, eq=False)
class SyncGroup:
    """Requests that one `sync` stores together or not at all, with their keys and answers."""

    keys: list[tuple[set[bytes], int]] = field(default_factory=list)
    """For each request: (digests of its keys, accepted at in µs)."""
    answers: dict[bytes, StoredAnswer] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)
    """Recording → its cursor."""
    stored: bool | None = None
    """True if a sync has stored the group, False if it failed, None until a sync has decided.

    A request that only repeats another request gets the result of its own group. That group is stored only if the group
    of the other request is stored too.
    """
    revised: dict[int, Accepted | Refused] = field(default_factory=dict)
    """Position of an answer → the answer that the sync gave instead. The sync of a local log changes none."""

    def answer_to(self, accepted: Accepted) -> Accepted | Refused:
        """The answer to send to the publisher, once the group is stored."""
        return self.revised.get(accepted.position, accepted)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is parsed. Whether its records are new is not known yet."""

    body_bytes: int
    records: Decoded | Alert
    digests: RequestDigests | None
    recorded: RecordedRange | None


Outcome: TypeAlias = tuple[Accepted | Refused, SyncGroup]
"""(answer to a request, group that decides whether it is stored). The group of a refused request has no meaning."""


class FeedGateway:
    def __init__(self, dataset: Dataset, directory: Path, limits: FeedLimits, now_s: Callable[[], float]) -> None:
        if dataset.kind is DatasetKind.STATIC:
            raise ValueError(f"{dataset.name} is STATIC: it is loaded from a file and takes no records")
        self.dataset = dataset
        self.limits = limits
        self._now_s = now_s
        # A thread takes these locks in the order upkeep, sync, state.
        self._state_lock = threading.RLock()
        """Guards the groups and `_closed`. Held while a request is appended, not while its body is parsed or the log is
        written: a `sync` would wait for it again and again."""
        self._sync_lock = threading.Lock()
        """Held for a whole `sync`."""
        self._upkeep_lock = threading.Lock()
        """Held for a whole `maintain` or `ingested`."""
        self._fresh, self._syncing = SyncGroup(), SyncGroup()
        self._closed = False
        self.recent = RecordRing()
        """The newest records, for live views. It has no effect on storage."""
        self._store = FeedStore(dataset, directory, limits, now_s)
        self._log = self._store.log
        self.log_directory = self._store.log.directory
        self._reader = RequestReader(self._store.codec, limits)
        self._alerts = AlertIntake(dataset, AlertLineage(directory / ALERTS_FILE))

    def log_reader(self) -> FeedLogReader:
        return FeedLogReader(self.log_directory)

    @property
    def durable_end(self) -> int:
        return self._log.durable_end

    @property
    def backlog_bytes(self) -> int:
        """Bytes that are accepted and not yet in the dataset."""
        return self._log.tail - self._store.ingested.position

    def waiting_since_s(self) -> float | None:
        """When the oldest durable record in the backlog was accepted; None if there is none. Blocks."""
        return oldest_accepted_s(self.log_directory, self._store.ingested.position) if self.backlog_bytes else None

    def accept(self, body: bytes, form: RecordForm, idempotency_key: str | None = None) -> Accepted | Refused:
        """Check a request and append its new records. They are not durable before the next `sync`."""
        return self.accept_into_group(body, form, idempotency_key)[0]

    def accept_into_group(
        self,
        body: bytes,
        form: RecordForm,
        idempotency_key: str | None = None,
        recorded: RecordedRange | None = None,
    ) -> Outcome:
        """Like `accept`. Also return the group that decides whether the request is stored."""
        prepared = self.prepare(body, form, idempotency_key, recorded)
        assert prepared is not None
        return self.append(prepared) if isinstance(prepared, Prepared) else prepared

    def prepare(
        self,
        body: bytes,
        form: RecordForm,
        idempotency_key: str | None = None,
        recorded: RecordedRange | None = None,
        closely: bool = True,
        pause: Callable[[], None] | None = None,
    ) -> Prepared | Outcome | None:
        """Check and parse a request, without a lock. The outcome if it is known already; otherwise call `append`.

        Without `closely` it takes a few milliseconds per MiB, and returns None for a body that must be decoded record
        by record, which takes up to two seconds per MiB. `pause` is called again and again meanwhile.
        """
        group = self._fresh
        refusal = self._reader.refusal(body, idempotency_key)
        if refusal is not None:
            return refusal, group
        alert = self._alerts.read(body) if form is RecordForm.CAP else None
        if isinstance(alert, AlertRefused):
            return Malformed(alert.reason), group
        digests = None if idempotency_key is None else RequestDigests.of(idempotency_key, body)
        if alert is not None:
            if not self._store.removes_repeats:
                # Without a KEY to recognise repeats by, the alert is its own Idempotency-Key.
                digest = alert_digest(alert)
                digests = RequestDigests(digest[:16], digest)
            return Prepared(len(body), alert, digests, recorded)
        with self._state_lock:
            early = self._answer_early(len(body), digests, recorded)
            if early is not None:
                return early, self._fresh
        decoded = self._reader.decode(body, form, closely, pause, may_give_up=recorded is None)
        if decoded is None:
            return None
        return Prepared(len(body), decoded, digests, recorded) if isinstance(decoded, Decoded) else (decoded, group)

    def append(self, request: Prepared) -> Outcome:
        """Append the new records of a request. They are not durable before the next `sync`."""
        with self._state_lock:
            # Another thread may have accepted requests, or closed the gateway, while this one parsed the body.
            early = self._answer_early(request.body_bytes, request.digests, request.recorded)
            if early is not None:
                return early, self._fresh
            if isinstance(request.records, Decoded):
                return self._append(request.records, request.digests, request.recorded), self._fresh
            # The lock is held throughout, because the records of an alert depend on the alerts before it.
            records = self._alert_records(request.records)
            if not isinstance(records, AlertRecords):
                return records, self._fresh
            decoded = self._reader.decode(records.body, RecordForm.JSON)
            if not isinstance(decoded, Decoded):
                assert decoded is not None
                return decoded, self._fresh
            return self._append(decoded, request.digests, request.recorded, records), self._fresh

    def recorded_upto(self, recording: str) -> int | Unavailable:
        """The durable cursor of a recorded topic: the last sequence number that is stored; 0 before the first."""
        with self._state_lock:
            if self._closed:
                return _CLOSED
            # A cursor that is not synced yet may still be lost, and the topic's home must not rely on it.
            if recording in self._fresh.cursors or recording in self._syncing.cursors:
                return _RECORDING
            return self._store.answers.recorded_upto(recording)

    def _answer_early(
        self, body_bytes: int, digests: RequestDigests | None, recorded: RecordedRange | None
    ) -> Accepted | Refused | None:
        """The answer to a request whose body need not be parsed; None for any other request."""
        if self._closed:
            return _CLOSED
        if recorded is not None:
            upto = self.recorded_upto(recorded.recording)
            if isinstance(upto, Unavailable):
                return upto
            if upto != recorded.after:
                return CursorConflict(upto)
        if self._store.is_behind_with_upkeep():
            return Unavailable("the disk refused to write; try again")
        earlier = None if digests is None else self._earlier_answer(digests, self._now_us())
        if earlier is not None:
            return earlier
        backlog_bytes = self.backlog_bytes
        if backlog_bytes and backlog_bytes + body_bytes > self.limits.backlog_bytes:
            excess_bytes = backlog_bytes + body_bytes - self.limits.backlog_bytes
            return Backlogged(self._store.ingested.retry_after_s(excess_bytes))
        return None

    def _now_us(self) -> int:
        return int(self._now_s() * 1e6)

    def sync(self) -> int:
        """Fsync all requests accepted before this call and return the durable end. Blocks.

        Raises `FeedLogWriteFailed` if the disk refuses. Then no undecided request is stored, not even one accepted
        while this sync ran.
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
                    # Requests accepted during the sync may repeat a lost request, or follow one in the log.
                    self._drop_undecided()
                raise
            with self._state_lock:
                self._syncing.stored = True
                self._store.commit(self._syncing.keys, self._syncing.answers, upto, self._syncing.cursors)
                self._syncing = SyncGroup()
            if self._store.answers.waiting:
                with suppress(sqlite3.Error):  # the answers stay in memory and in the log; the next sync retries
                    self._store.answers.store_waiting()
        if self._store.index.keys_in_memory >= 2 * self.limits.memory_keys:
            # The caller did not run `maintain`. Its failure is not a failure of the sync: the records are durable.
            with suppress(OSError, sqlite3.Error):
                self.maintain()
        return upto

    def _drop_undecided(self) -> None:
        self._fresh.stored = self._syncing.stored = False
        self._fresh, self._syncing = SyncGroup(), SyncGroup()
        self._log.drop_buffered()
        self._store.records_end = min(self._store.records_end, self._log.tail)

    def is_due_for_upkeep(self) -> bool:
        """True if `maintain` should run at once. A `sync` runs it itself if the keys in memory double meanwhile."""
        return self._store.removes_repeats and self._store.index.is_full()

    def maintain(self) -> None:
        """Upkeep: flush and merge key files, delete expired keys, answers and alerts, trim the log. Blocks."""
        with self._upkeep_lock:
            if self._closed:
                return
            with self._state_lock:
                self._store.skip_frames_without_records()
            now_us = self._now_us()
            self._store.flush_and_merge_keys(now_us)
            self._store.answers.forget(now_us)
            if self.dataset.retain_s is not None:
                self._alerts.forget(now_us - int(self.dataset.retain_s * 1e6))
            self._store.trim()

    def ingested(self, position: int) -> None:
        """Records before `position` are safe in the dataset: they leave the backlog, and the log may be trimmed.

        The log keeps what the key index or the answers need to recover after a crash.
        """
        if position > self._log.durable_end:
            raise ValueError(f"position {position} is beyond the durable end {self._log.durable_end}")
        with self._upkeep_lock:
            if position > self._store.ingested.position and not self._closed:
                self._store.ingested.advance(position)
                self._store.trim()

    def close(self) -> None:
        """Close the files after a running sync or upkeep. Requests that are accepted and not synced are not stored."""
        with self._upkeep_lock, self._sync_lock, self._state_lock:
            if not self._closed:
                self._closed = True
                self._drop_undecided()
                self._store.close()
                self._alerts.close()

    def _append(
        self,
        decoded: Decoded,
        digests: RequestDigests | None,
        recorded: RecordedRange | None,
        records: AlertRecords | None = None,
    ) -> Accepted | Refused:
        """Append the new records of a request to the log."""
        now_us = self._now_us()
        payload, count, keys = self._without_repeats(decoded, now_us)
        answer = Accepted(
            accepted=count,
            duplicates=decoded.count - count,
            refused=decoded.refusals[: self.limits.refusals_listed],
            refused_total=len(decoded.refusals) + decoded.not_read,
            notices=[] if records is None else records.notices,
        )
        if not count and digests is None and recorded is None:
            return replace(answer, position=self._log.tail)
        if records is not None:
            try:
                self._alerts.remember(records, now_us)
            except sqlite3.Error:
                return _ALERTS_UNAVAILABLE
        meta: dict[str, Any] = {"accepted_at_us": now_us}
        if digests is not None:
            # The frame contains the answer, so that records and answer become durable together or not at all.
            meta["idempotency"] = {
                "key": digests.key.hex(),
                "body": digests.body.hex(),
                "answer": msgspec.to_builtins(answer),
            }
        if recorded is not None:  # the cursor becomes durable with the records
            meta["recorded"] = [recorded.recording, recorded.upto]
            self._fresh.cursors[recorded.recording] = recorded.upto
        answer = replace(answer, position=self._log.append(payload, count, meta))
        if count:
            self._store.records_end = answer.position
            self.recent.add(payload)
        if keys:
            self._fresh.keys.append((keys, now_us))
        if digests is not None:
            self._fresh.answers[digests.key] = StoredAnswer(digests, answer, now_us)
        return answer

    def _alert_records(self, alert: Alert) -> AlertRecords | Refused:
        try:
            records = self._alerts.records(alert)
        except sqlite3.Error:
            return _ALERTS_UNAVAILABLE
        return KeyConflict(records.reason) if isinstance(records, AlertConflict) else records

    def _without_repeats(self, decoded: Decoded, now_us: int) -> tuple[bytes, int, set[bytes]]:
        """(payload, count, key digests) of the records whose key is new."""
        digests = decoded.digests
        keys = set(digests)
        if not keys:
            return decoded.lines, decoded.count, keys
        candidates = [digests[index] for index in self._store.index.expect(digests)]
        repeats: set[bytes] = set()
        if candidates:
            stored = self._store.index.seen(candidates, now_us).tolist()
            repeats = {digest for digest, is_stored in zip(candidates, stored, strict=True) if is_stored}
            unique = set(candidates)
            for unsynced, _ in (*self._fresh.keys, *self._syncing.keys):
                repeats |= unsynced & unique
        if not repeats and len(keys) == len(digests):
            return decoded.lines, decoded.count, keys
        lines: dict[bytes, bytes] = {}
        for line, digest in zip(decoded.lines.split(b"\n"), digests, strict=True):
            if digest not in repeats:
                lines.setdefault(digest, line)
        return b"\n".join(lines.values()), len(lines), set(lines)

    def _earlier_answer(self, digests: RequestDigests, now_us: int) -> Accepted | KeyConflict | None:
        """The answer to an earlier request with the same Idempotency-Key, or None."""
        key = digests.key
        stored = self._fresh.answers.get(key) or self._syncing.answers.get(key)
        stored = stored or self._store.answers.find(key, now_us)
        if stored is None:
            return None
        return replace(stored.accepted, replayed=True) if stored.digests.body == digests.body else KeyConflict()
