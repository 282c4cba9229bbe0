"""What an entry keeps: the batches of its publishers that a recovery may still need. Pure logic; a driver stores bytes.

    admit(publisher, number)   before the driver writes: STORE, REPEAT (answer at once) or a reason to refuse
    store(batch)               after the fsync; the batch now counts in `stored_through`
    release(horizons_us)       batches that no recovery needs: the driver deletes them
    keep(publishers)           batches of publishers that moved to another node: the driver deletes them
    replay(horizons_us)        the batches to hand in again, in the order in which they were stored

A publisher numbers its batches from 1. A batch has the same content each time it is sent. The first number of a
publisher that this entry does not know may be any: the publisher continues behind what was durable elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class StoredBatch:
    publisher: str
    number: int
    stream: str
    newest_us: int | None
    """The newest event time in the batch; None if no reading has a time, so that no result can need it."""


@dataclass(frozen=True, slots=True)
class PublisherMark:
    """What remains of a publisher when its batches are deleted. The driver stores it with each deletion."""

    publisher: str
    stored_through: int
    durable_through: int


class Admission(StrEnum):
    STORE = "STORE"
    REPEAT = "REPEAT"
    """The batch is stored already."""
    IN_PROGRESS = "IN_PROGRESS"
    """The same batch is being written. The publisher gets an answer when the fsync is done."""
    GAP = "GAP"
    """An earlier batch is missing: the publisher sends it first."""


@dataclass(slots=True)
class _Publisher:
    stored_through: int
    durable_through: int
    writing: set[int] = field(default_factory=set)
    kept: dict[int, StoredBatch] = field(default_factory=dict)


class EntryRetention:
    def __init__(self, marks: Iterable[PublisherMark] = (), batches: Iterable[StoredBatch] = ()) -> None:
        """Continue with the marks and batches of an entry log, the batches in the order in which they were stored."""
        self._publishers = {mark.publisher: _Publisher(mark.stored_through, mark.durable_through) for mark in marks}
        self._order: dict[tuple[str, int], StoredBatch] = {}
        for batch in batches:
            self._publishers.setdefault(batch.publisher, _Publisher(batch.number - 1, batch.number - 1))
            self._add(batch)

    @property
    def publishers(self) -> frozenset[str]:
        return frozenset(self._publishers)

    def stored_through(self, publisher: str) -> int:
        known = self._publishers.get(publisher)
        return 0 if known is None else known.stored_through

    def durable_through(self, publisher: str) -> int:
        """No recovery needs the publisher's batches up to this number: it may forget them."""
        known = self._publishers.get(publisher)
        return 0 if known is None else known.durable_through

    def next_number(self, publisher: str) -> int:
        """The number for a batch that comes without one."""
        known = self._publishers.get(publisher)
        return 1 if known is None else max((known.stored_through, *known.writing)) + 1

    def mark(self, publisher: str) -> PublisherMark:
        return PublisherMark(publisher, self.stored_through(publisher), self.durable_through(publisher))

    def admit(self, publisher: str, number: int) -> Admission:
        known = self._publishers.setdefault(publisher, _Publisher(number - 1, number - 1))
        if number <= known.stored_through:
            return Admission.REPEAT
        if number in known.writing:
            return Admission.IN_PROGRESS
        if number != self.next_number(publisher):
            return Admission.GAP
        known.writing.add(number)
        return Admission.STORE

    def store(self, batch: StoredBatch) -> bool:
        """The batch is on disk. False if the publisher has moved away meanwhile: the driver deletes the batch."""
        known = self._publishers.get(batch.publisher)
        if known is None or batch.number not in known.writing:
            return False
        known.writing.discard(batch.number)
        self._add(batch)
        return True

    def abandon(self, publisher: str, number: int) -> None:
        """The write failed. Later batches of the publisher that are being written fail with it."""
        known = self._publishers.get(publisher)
        if known is not None:
            known.writing = {other for other in known.writing if other < number}

    def release(self, horizons_us: Mapping[str, int]) -> list[StoredBatch]:
        """Forget what no recovery needs, and raise `durable_through`. Return the forgotten batches."""
        released = [batch for batch in self._order.values() if not is_needed(batch, horizons_us)]
        for batch in released:
            del self._order[batch.publisher, batch.number]
            del self._publishers[batch.publisher].kept[batch.number]
        for known in self._publishers.values():
            known.durable_through = max(known.durable_through, min(known.kept, default=known.stored_through + 1) - 1)
        return released

    def keep(self, publishers: Collection[str]) -> list[StoredBatch]:
        """Forget everything about all other publishers. Return their batches."""
        void = [batch for batch in self._order.values() if batch.publisher not in publishers]
        for batch in void:
            del self._order[batch.publisher, batch.number]
        self._publishers = {name: known for name, known in self._publishers.items() if name in publishers}
        return void

    def replay(self, horizons_us: Mapping[str, int]) -> list[StoredBatch]:
        return [batch for batch in self._order.values() if is_needed(batch, horizons_us)]

    def _add(self, batch: StoredBatch) -> None:
        known = self._publishers[batch.publisher]
        self._order[batch.publisher, batch.number] = known.kept[batch.number] = batch
        known.stored_through = max(known.stored_through, batch.number)


def is_needed(batch: StoredBatch, horizons_us: Mapping[str, int]) -> bool:
    """True if a result above some query's floor can contain a reading of the batch."""
    horizon_us = horizons_us.get(batch.stream)
    return batch.newest_us is not None and (horizon_us is None or batch.newest_us > horizon_us)


class SourceProgress:
    """The position of a source from which a recovery must read: the source itself keeps the readings."""

    def __init__(self, position: int) -> None:
        self.durable_position = position
        self._read: dict[int, int | None] = {}
        """For each chunk that was read: the position behind it and its newest event time, in order."""

    def read(self, until: int, newest_us: int | None) -> None:
        self._read[until] = newest_us

    def release(self, horizon_us: int) -> int:
        """The new durable position."""
        for until, newest_us in list(self._read.items()):
            if newest_us is not None and newest_us > horizon_us:
                break
            self.durable_position = until
            del self._read[until]
        return self.durable_position
