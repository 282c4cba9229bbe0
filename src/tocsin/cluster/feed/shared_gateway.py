"""The feed gateway of one dataset whose log is shared: it has no state of its own, and any number of them may accept.

It takes the same calls as `FeedGateway`. `append` only collects requests. `sync` writes the collected group as one
object below the data root, and gives it its place in the log with one catalog transaction. That transaction finds
repeats: records by their key, requests by their Idempotency-Key, messages of a topic by the cursor of the recording,
also those that other gateways accepted. So a request's answer is known only then: `SyncGroup.answer_to`.

A gateway that dies between the two steps leaves an object that no row names; upkeep deletes it. No HTTP and no threads
in here. Different threads may call `prepare`, `append`, `sync` and `maintain` at the same time, also several `sync`.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from sqlalchemy.exc import SQLAlchemyError

from tocsin.cluster.cap.intake import AlertConflict, AlertIntake, AlertRefused, alert_digest
from tocsin.cluster.cap.shared_lineage import SharedLineage
from tocsin.cluster.catalog import Catalog
from tocsin.cluster.catalog.logs import LogState
from tocsin.cluster.catalog.placing import (
    LogGone,
    LogRequest,
    NewObject,
    Placed,
)
from tocsin.cluster.feed.answertable import RequestDigests
from tocsin.cluster.feed.feedlog_reader import FeedLogWriteFailed, NewFrame
from tocsin.cluster.feed.gateway import FeedGateway, Outcome, Prepared, RecordForm, SyncGroup
from tocsin.cluster.feed.log_objects import write_object
from tocsin.cluster.feed.outcomes import (
    Accepted,
    Backlogged,
    FeedLimits,
    KeyConflict,
    RecordedRange,
    Refused,
    Unavailable,
)
from tocsin.cluster.feed.recordforms import Malformed
from tocsin.cluster.feed.records import Decoded, RecordCodec
from tocsin.cluster.feed.requests import RequestReader
from tocsin.cluster.feed.shared_answers import log_request, revised_answers
from tocsin.cluster.feed.shared_keys import SharedKeys
from tocsin.cluster.feed.shared_log import FOLDER, SharedLogReader
from tocsin.cluster.feed.tap import RecordRing
from tocsin.cluster.store.storage import Storage
from tocsin.database.lease import boot_clock_s
from tocsin.model.entities import Dataset, DatasetKind

FORGET_SHARE = 1 / 16
"""Keys and answers that have expired are looked for once in this share of their retention."""
FORGET_LEAST_S = 600.0
LOOK_S = 0.5
"""How old the known end of the log may be when the backlog is judged full. Other gateways and ingestion move it."""
FOLLOW_S = 0.2
"""How old the known end may be for ingestion: the longest time until it sees an object of another gateway."""
PLACE_S = 600.0
"""The longest time from the beginning of a write to its place, also while the machine sleeps: upkeep deletes objects
that wait for much longer."""
_CLOSED = Unavailable("this dataset takes no more records: it was dropped, or the data cluster stops; try again")
_ALERTS_UNAVAILABLE = Unavailable("the catalog refused to remember the alert; try again")


@dataclass(slots=True, eq=False)
class SharedGroup(SyncGroup):
    frames: list[NewFrame] = field(default_factory=list)
    requests: list[LogRequest] = field(default_factory=list)
    provisional: list[Accepted] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    """The digest of each request's body, if it has an Idempotency-Key."""
    bytes: int = 0
    since_us: int = 0
    decided: threading.Event = field(default_factory=threading.Event)
    """Set when the group and all groups before it have their places, or will never have one."""


def new_seed() -> int:
    """For the digests of the keys of a new shared log."""
    return secrets.randbits(62)


class SharedGateway:
    syncs_at_once = 3
    """Groups that may be stored at the same time: one object is written while another gets its place."""

    def __init__(
        self,
        dataset: Dataset,
        log: int,
        catalog: Catalog,
        storage: Storage,
        limits: FeedLimits,
        now_s: Callable[[], float],
        state: LogState,
    ) -> None:
        self.dataset = dataset
        self.limits = limits
        self.recent = RecordRing()
        """The newest records, for live views. It has no effect on storage."""
        self._log = log
        self._catalog = catalog
        self._storage = storage
        self._now_s = now_s
        self._folder = f"{FOLDER}/{dataset.name}-{log}"
        removes_repeats = dataset.kind is DatasetKind.STREAM and bool(dataset.key)
        self._keys = SharedKeys(dataset.retain_s, limits.memory_keys, self._now_us) if removes_repeats else None
        codec = RecordCodec(
            dataset.schema, dataset.key, limits.records, digest_seed=state.seed if removes_repeats else None
        )
        self._reader = RequestReader(codec, limits)
        self._state_lock = threading.Lock()
        """Guards the fresh group and the positions. Held for microseconds."""
        self._place_lock = threading.Lock()
        """Held while an object gets its place, and while the index of keys is used."""
        self._alerts = AlertIntake(dataset, SharedLineage(catalog.log_alerts, log))
        self._alerts_lock = threading.Lock()
        """Held while the records of an alert are made: they depend on the alerts before it."""
        self._fresh = SharedGroup()
        self._last_decided = threading.Event()
        """`decided` of the last group that a `sync` has taken."""
        self._last_decided.set()
        self._closed = False
        self._tail, self._ingested = state.tail, state.ingested
        self._looked_s = time.monotonic()
        self._placed_s = -math.inf
        """When this gateway had read all keys of the others."""
        self._next_forget_s = time.monotonic() + FORGET_LEAST_S

    @property
    def has_collected(self) -> bool:
        """True if requests wait for a `sync`."""
        return bool(self._fresh.requests) and not self._closed

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def durable_end(self) -> int:
        return self._tail

    @property
    def backlog_bytes(self) -> int:
        """Bytes in the log that are not yet in the dataset, as far as this gateway knows."""
        return max(0, self._tail - self._ingested)

    def log_reader(self) -> SharedLogReader:
        return SharedLogReader(self._catalog, self._storage, self._log, self._end)

    def _end(self) -> int:
        """The end of the log: at once after a `sync` of this gateway, soon after one of another."""
        if time.monotonic() - self._looked_s > FOLLOW_S:
            self.look()
        return self._tail

    def waiting_since_s(self) -> float | None:
        """When the oldest record in the backlog was accepted; None if there is none. Blocks."""
        since_us = self._catalog.logs.oldest_us(self._log, self._ingested)
        return None if since_us is None else since_us / 1e6

    def accept(self, body: bytes, form: RecordForm, idempotency_key: str | None = None) -> Accepted | Refused:
        """Check a request and collect its records. They are not durable, and repeats not known, before `sync`."""
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
        """Check and parse a request, without a lock: see `FeedGateway.prepare`."""
        refusal = self._reader.refusal(body, idempotency_key) or self._refusal(len(body))
        if refusal is not None:
            return refusal, self._fresh
        digests = None if idempotency_key is None else RequestDigests.of(idempotency_key, body)
        if form is RecordForm.CAP:
            alert = self._alerts.read(body)
            if isinstance(alert, AlertRefused):
                return Malformed(alert.reason), self._fresh
            if self._keys is None:
                # Without a KEY to recognise repeats by, the alert is its own Idempotency-Key.
                digest = alert_digest(alert)
                digests = RequestDigests(digest[:16], digest)
            return Prepared(len(body), alert, digests, recorded)
        decoded = self._reader.decode(body, form, closely, pause, may_give_up=recorded is None)
        if decoded is None:
            return None
        if not isinstance(decoded, Decoded):
            return decoded, self._fresh
        return Prepared(len(body), decoded, digests, recorded)

    def append(self, request: Prepared) -> Outcome:
        """Collect a request for the next `sync`. Blocks for queries if the request is an alert."""
        if isinstance(request.records, Decoded):
            return self._collect(request, request.records, [])
        with self._alerts_lock:
            try:
                known = self._alerts.records(request.records)
                if isinstance(known, AlertConflict):
                    return KeyConflict(known.reason), self._fresh
                decoded = self._reader.decode(known.body, RecordForm.JSON)
                if not isinstance(decoded, Decoded):
                    assert decoded is not None
                    return decoded, self._fresh
                self._alerts.remember(known, self._now_us())
            except SQLAlchemyError:
                return _ALERTS_UNAVAILABLE, self._fresh
            return self._collect(request, decoded, known.notices)

    def _collect(self, request: Prepared, records: Decoded, notices: list[str]) -> Outcome:
        with self._state_lock:
            refusal = self._refusal(request.body_bytes)
            if refusal is not None:
                return refusal, self._fresh
            now_us = self._now_us()
            group = self._fresh
            answer = Accepted(
                accepted=records.count,
                duplicates=0,
                refused=records.refusals[: self.limits.refusals_listed],
                refused_total=len(records.refusals) + records.not_read,
                position=len(group.requests),
                notices=notices,
            )
            if not records.count and request.digests is None and request.recorded is None:
                group = SharedGroup(stored=True)  # there is nothing to store
                return answer, group
            frame = NewFrame.of(group.bytes, records.lines, records.count, {"accepted_at_us": now_us})
            group.since_us = group.since_us or now_us
            group.bytes = frame.next_position
            group.frames.append(frame)
            group.requests.append(log_request(request, records, answer))
            group.provisional.append(answer)
            group.bodies.append(None if request.digests is None else request.digests.body)
            if records.count:
                self.recent.add(records.lines)
        return answer, group

    def recorded_upto(self, recording: str) -> int | Unavailable:
        """The durable cursor of a recorded topic: the last sequence number that is stored; 0 before the first."""
        return _CLOSED if self._closed else self._catalog.logs.recorded_upto(self._log, recording)

    def _refusal(self, body_bytes: int) -> Refused | None:
        if self._closed:
            return _CLOSED
        if self.must_look(body_bytes):
            with suppress(SQLAlchemyError):  # the publisher tries again
                self.look()
        return Backlogged(5) if self._is_full(body_bytes) else None

    def must_look(self, body_bytes: int) -> bool:
        """True if `prepare` and `append` would call `look` for a body of this size, which blocks for a query."""
        return self._is_full(body_bytes) and time.monotonic() - self._looked_s > LOOK_S

    def _is_full(self, body_bytes: int) -> bool:
        waiting_bytes = self.backlog_bytes + self._fresh.bytes
        return bool(waiting_bytes) and waiting_bytes + body_bytes > self.limits.backlog_bytes

    def look(self) -> None:
        """Read from the catalog how far other gateways and ingestion are. Blocks for a query."""
        self._looked_s = time.monotonic()
        try:
            state = self._catalog.logs.state(self.dataset.name, self._log)
        finally:
            self._looked_s = time.monotonic()
        if state is not None:
            self._tail, self._ingested = max(state.tail, self._tail), max(state.ingested, self._ingested)

    def _now_us(self) -> int:
        return int(self._now_s() * 1e6)

    def sync(self) -> int:
        """Store all requests collected before this call and return the end of the log. Blocks.

        Raises `FeedLogWriteFailed` if the store or the catalog does not take them. Then none of them is stored.
        """
        with self._state_lock:
            if self._closed:
                raise FeedLogWriteFailed(f"{self.dataset.name}: {_CLOSED.reason}")
            group, self._fresh = self._fresh, SharedGroup()
            if not group.requests:
                group.stored = True
                return self._tail
            before, self._last_decided = self._last_decided, group.decided
        started_s = boot_clock_s()
        try:
            path, size_bytes = self._write(group)
            before.wait()  # a publisher may have sent this group's records after those of the group before
            with self._place_lock:
                placed = self._place(group, path, size_bytes, started_s)
        except BaseException as error:
            group.stored = False
            if isinstance(error, LogGone):
                self._refuse_more()
            raise FeedLogWriteFailed(f"{self.dataset.name}: {error or _CLOSED.reason}; nothing was stored") from error
        finally:
            before.wait()  # a group that failed does not let the next one overtake those before it
            group.decided.set()
        with self._state_lock:
            self._tail, self._ingested = max(self._tail, placed.tail), max(self._ingested, placed.ingested)
            self._looked_s = time.monotonic()
        group.revised = revised_answers(group.provisional, group.bodies, placed.fates)
        group.stored = True
        return self._tail

    def _write(self, group: SharedGroup) -> tuple[str, int]:
        """(path of the object, its length in the log)."""
        path = f"{self._folder}/{uuid.uuid4().hex}-.log"
        return path, write_object(self._storage, path, group.frames)

    def _place(self, group: SharedGroup, path: str, size_bytes: int, started_s: float) -> Placed:
        if self._closed or boot_clock_s() - started_s > PLACE_S:
            raise FeedLogWriteFailed(_CLOSED.reason if self._closed else "this process was stopped for too long")
        now_us = self._now_us()
        keys_from_us, answers_from_us = self._horizons_us(now_us)
        new = NewObject(path, size_bytes, group.since_us, group.requests)
        if self._keys is None:
            return self._catalog.logs.place(self._log, new, None, now_us, answers_from_us)
        if time.monotonic() - self._placed_s > FOLLOW_S:
            # Many keys of other gateways are read before the transaction, which locks the log.
            while blocks := self._catalog.logs.key_blocks(self._log, self._keys.known, keys_from_us):
                self._keys.follow(blocks)
                self._keys.settle()
        self._keys.settle()  # before the transaction: afterwards, a full disk must not deny what is stored
        placed = self._catalog.logs.place(self._log, new, self._keys, now_us, answers_from_us)
        self._keys.placed(placed.keys, placed.at_us, placed.tail)
        self._placed_s = time.monotonic()
        return placed

    def _horizons_us(self, now_us: int) -> tuple[int, int]:
        """(keys, answers) from before these moments are forgotten."""
        retain_s = self.dataset.retain_s
        answers_s = self.limits.idempotency_retention_s if retain_s is None else retain_s
        return (0 if retain_s is None else now_us - int(retain_s * 1e6)), now_us - int(answers_s * 1e6)

    def is_due_for_upkeep(self) -> bool:
        return False

    def maintain(self) -> None:
        """Upkeep: drop the objects that are in the dataset, and expired keys and answers. Blocks."""
        if self._closed:
            return
        self.look()
        now_s = self._now_s()
        self._catalog.logs.trim(self._log, self._ingested, now_s)
        self.merge_keys()
        if time.monotonic() >= self._next_forget_s:
            retain_s = self.dataset.retain_s or self.limits.idempotency_retention_s
            self._next_forget_s = time.monotonic() + max(FORGET_LEAST_S, retain_s * FORGET_SHARE)
            now_us = int(now_s * 1e6)
            self._catalog.logs.forget(self._log, *self._horizons_us(now_us))
            if self.dataset.retain_s is not None:
                self._alerts.forget(now_us - int(self.dataset.retain_s * 1e6))

    def merge_keys(self) -> None:
        """Upkeep of this gateway's own index: merge its files, and delete expired ones. Blocks."""
        with self._place_lock:
            if self._keys is not None and not self._closed:
                self._keys.merge()

    def ingested(self, position: int) -> None:
        """Records before `position` are safe in the dataset: they leave the backlog."""
        self._ingested = max(self._ingested, position)
        self._tail = max(self._tail, position)

    def close(self) -> None:
        """Take no more requests. Those that are collected and not synced are not stored."""
        with self._place_lock, self._state_lock:
            if not self._closed and self._keys is not None:
                self._keys.close()
            self._closed = True
            self._fresh.stored = False

    def _refuse_more(self) -> None:
        with self._state_lock:
            self._closed = True
            self._fresh.stored = False


Gateway: TypeAlias = FeedGateway | SharedGateway
