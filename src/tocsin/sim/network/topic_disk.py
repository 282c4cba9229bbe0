"""The disk of a broker in simulated topics: it survives the broker's process.

Operations on one log are carried out one after the other and take time. When the process is killed, the first of the
waiting operations may have reached the disk without a report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tocsin.broker.topics import effects, events
from tocsin.model.ids import TopicName
from tocsin.sim.kernel import Kernel
from tocsin.wire.topic import Entry
from tocsin.wire.topic_log import Epochs, Piece, Snapshot, cut_epochs, with_epoch

_FSYNC_S = 0.004

Key = tuple[TopicName, int]


@dataclass(slots=True)
class MemoryLog:
    """The content of one log."""

    promised: int = 0
    epochs: Epochs = field(default_factory=list)
    start: int = 1
    entries: list[tuple[int, Entry]] = field(default_factory=list)
    """(epoch, entry), the first of which has the sequence number `start`."""
    before: Snapshot = field(default_factory=lambda: Snapshot(1, [], []))

    @property
    def end(self) -> int:
        return self.start + len(self.entries) - 1

    @property
    def publishers(self) -> dict[int, int]:
        return dict(self.before.publishers) | {entry[0]: entry[1] for _, entry in self.entries}

    def append(self, piece: Piece) -> None:
        assert piece.first == self.end + 1, "a hole in the log"
        self.epochs = with_epoch(self.epochs, piece)
        self.promised = max(self.promised, piece.epoch)
        self.entries += [(piece.epoch, entry) for entry in piece.entries]

    def adopt(self, epoch: int, cut: tuple[int, int] | None) -> None:
        self.promised = max(self.promised, epoch)
        if cut is not None:
            self.epochs = cut_epochs(self.epochs, cut[0])
            del self.entries[max(0, cut[1] + 1 - self.start) :]

    def reset(self, epoch: int, snapshot: Snapshot) -> None:
        self.promised = max(self.promised, epoch)
        self.epochs, self.start, self.entries, self.before = list(snapshot.epochs), snapshot.first, [], snapshot

    def trim(self, before: int) -> None:
        count = min(max(0, before - self.start), len(self.entries))
        gone, self.entries = self.entries[:count], self.entries[count:]
        publishers = dict(self.before.publishers) | {entry[0]: entry[1] for _, entry in gone}
        self.start += count
        epochs = [(epoch, first) for epoch, first in self.epochs if first <= self.start]
        self.before = Snapshot(self.start, epochs, list(publishers.items()))

    def read(self, after: int, upto: int, limit: int) -> list[Piece]:
        first = max(after + 1, self.start)
        taken = self.entries[first - self.start : min(upto + 1, first + limit) - self.start]
        pieces: list[Piece] = []
        for offset, (epoch, entry) in enumerate(taken):
            if not pieces or pieces[-1].epoch != epoch:
                pieces.append(Piece(epoch, first + offset, []))
            pieces[-1].entries.append(entry)
        return pieces


class SimulatedDisk:
    def __init__(self, kernel: Kernel, rng: np.random.Generator, retain: int) -> None:
        """`retain`: messages that a trimmed log keeps."""
        self.logs: dict[Key, MemoryLog] = {}
        self.fails = False
        """True while every operation fails, as with a full disk."""
        self._kernel = kernel
        self._rng = rng
        self._retain = retain
        self._waiting: dict[Key, list[effects.LogEffect]] = {}
        self._report: Callable[[events.Event], None] = lambda event: None
        self._run = 0

    def start(self, report: Callable[[events.Event], None]) -> None:
        """A process begins to use the disk."""
        self._run += 1
        self._report = report

    def kill(self) -> None:
        """The process dies: some of the first waiting operations reach the disk all the same."""
        self._run += 1
        self._report = lambda event: None
        for key, waiting in self._waiting.items():
            for effect in waiting[: int(self._rng.integers(len(waiting) + 1))]:
                self._carry_out(key, effect)
        self._waiting.clear()

    def keep(self, logs: list[Key]) -> None:
        self.logs = {key: log for key, log in self.logs.items() if key in logs or key in self._waiting}

    def perform(self, effect: effects.LogEffect) -> None:
        key = (effect.topic, effect.created)
        waiting = self._waiting.setdefault(key, [])
        waiting.append(effect)
        if len(waiting) == 1:
            self._schedule(key)

    def _schedule(self, key: Key) -> None:
        self._kernel.call_after(float(self._rng.exponential(_FSYNC_S)), self._next, key, self._run)

    def _next(self, key: Key, run: int) -> None:
        waiting = self._waiting.get(key)
        if run != self._run or not waiting:
            return
        if self.fails:
            del self._waiting[key]
            self._report(events.LogFailed(*key, "no space left on device"))
            return
        event = self._carry_out(key, waiting.pop(0))
        if waiting:
            self._schedule(key)
        else:
            del self._waiting[key]
        if event is not None:
            self._report(event)

    def _carry_out(self, key: Key, effect: effects.LogEffect) -> events.Event | None:
        if isinstance(effect, effects.DropLog):
            self.logs.pop(key, None)
            return None
        log = self.logs.setdefault(key, MemoryLog())
        match effect:
            case effects.OpenLog():
                publishers = list(log.publishers.items())
                return events.LogOpened(*key, log.promised, list(log.epochs), log.start, log.end, publishers)
            case effects.AppendToLog(piece=piece):
                log.append(piece)
                return events.LogStored(*key, log.epochs[-1][0], log.end, log.start)
            case effects.AdoptEpoch(epoch=epoch, cut=cut):
                log.adopt(epoch, cut)
                return events.LogAdopted(*key, epoch, log.end)
            case effects.ResetLog(epoch=epoch, snapshot=snapshot):
                log.reset(epoch, snapshot)
                return events.LogAdopted(*key, epoch, log.end)
            case effects.ReadLog(reader=reader, after=after, upto=upto):
                return events.LogRead(*key, reader, log.read(after, upto, 3), log.start)
            case effects.ReadSnapshot(reader=reader):
                return events.SnapshotRead(*key, reader, log.before)
            case effects.TrimLog(before=before):
                log.trim(log.end + 1 - self._retain if before is None else before)
        return None
