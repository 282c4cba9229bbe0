"""The logs of persistent topics in a broker's process: files in threads, so that an fsync never blocks the event loop.

The operations of one log are carried out one after the other. Appends that wait together are written with one fsync
(group commit): while one fsync runs, every message that arrives waits for the next. Logs are independent of each other.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tocsin.broker.topics import effects, events
from tocsin.model.ids import TopicName
from tocsin.runtime.broker.topic_log import TopicLog, TopicLogError
from tocsin.runtime.http.logs import logger

THREADS = 8
Key = tuple[TopicName, int]


class LogFigures:
    """What metrics show of all logs."""

    def __init__(self) -> None:
        self.written_bytes = 0
        self.fsyncs = 0
        self.appends = 0
        self.append_s = 0.0
        """Seconds from handing a piece to its log until it was on disk, summed over all pieces."""
        self.failures = 0


class _Worker:
    """The queue of one log."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.waiting: deque[tuple[effects.LogEffect, float]] = deque()
        self.busy = False
        self.log: TopicLog | None = None


class TopicLogs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: dict[Key, _Worker] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="topic-log")
        self._tasks: set[asyncio.Task[None]] = set()
        self.report: Callable[[events.Event], None] = lambda event: None
        self.figures = LogFigures()
        self._stopped = False
        self._log = logger()

    @property
    def open_logs(self) -> int:
        return sum(worker.log is not None for worker in self._workers.values())

    def perform(self, effect: effects.LogEffect | effects.KeepLogs) -> None:
        if isinstance(effect, effects.KeepLogs):
            self._keep(effect.logs)
            return
        if self._stopped:
            return
        key = (effect.topic, effect.created)
        worker = self._workers.get(key)
        if worker is None:
            worker = self._workers[key] = _Worker(self._folder / folder_name(*key))
        worker.waiting.append((effect, time.monotonic()))
        if not worker.busy:
            worker.busy = True
            self._start(self._work(key, worker))

    def _keep(self, logs: list[Key]) -> None:
        """Delete every other log on disk."""
        kept = {folder_name(*key) for key in [*logs, *self._workers]}
        self._start(self._delete_except(kept))

    async def stop(self) -> None:
        """Finish what was begun, and close the files. Nothing that is appended later would be acknowledged."""
        self._stopped = True
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers.values():
            if worker.log is not None:
                worker.log.close()
        self._threads.shutdown(wait=False)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete_except(self, kept: set[str]) -> None:
        def delete() -> list[str]:
            if not self._folder.is_dir():
                return []
            old = [path for path in self._folder.iterdir() if path.is_dir() and path.name not in kept]
            for path in old:
                shutil.rmtree(path, ignore_errors=True)
            return [path.name for path in old]

        deleted = await asyncio.get_running_loop().run_in_executor(self._threads, delete)
        if deleted:
            self._log.info("deleted logs that this broker does not keep any more", logs=deleted[:20])

    # -- one log -------------------------------------------------------------------------------------------------------

    async def _work(self, key: Key, worker: _Worker) -> None:
        loop = asyncio.get_running_loop()
        while worker.waiting:
            batch = _next_batch(worker.waiting)
            try:
                event = await loop.run_in_executor(self._threads, self._carry_out, key, worker, batch)
            except (
                Exception
            ) as error:  # also a defect must not stop the log: the core takes another home or tries again
                self.figures.failures += 1
                worker.waiting.clear()  # they follow what was not stored
                expected = isinstance(error, TopicLogError | OSError)
                trace = None if expected else error
                self._log.error("the log of a topic failed", topic=key[0], reason=str(error), exc_info=trace)
                event = events.LogFailed(*key, str(error))
            if event is not None:
                self.report(event)
            if isinstance(batch[-1][0], effects.DropLog) and not worker.waiting:
                del self._workers[key]
                return
        worker.busy = False

    def _carry_out(
        self, key: Key, worker: _Worker, batch: list[tuple[effects.LogEffect, float]]
    ) -> events.Event | None:
        """Runs in a thread."""
        effect = batch[0][0]
        if isinstance(effect, effects.DropLog):
            if worker.log is not None:
                worker.log.close()
                worker.log = None
            shutil.rmtree(worker.directory, ignore_errors=True)
            return None
        if worker.log is None:
            worker.log = TopicLog(worker.directory)
        log = worker.log
        fsyncs, written_bytes = log.fsyncs, log.written_bytes
        try:
            return self._apply(key, log, batch)
        finally:
            self.figures.fsyncs += log.fsyncs - fsyncs
            self.figures.written_bytes += log.written_bytes - written_bytes

    def _apply(self, key: Key, log: TopicLog, batch: list[tuple[effects.LogEffect, float]]) -> events.Event | None:
        match batch[0][0]:
            case effects.OpenLog():
                publishers = list(log.publishers.items())
                return events.LogOpened(*key, log.promised, list(log.epochs), log.start, log.end, publishers)
            case effects.AppendToLog():
                log.append([effect.piece for effect, _ in batch if isinstance(effect, effects.AppendToLog)])
                now_s = time.monotonic()
                self.figures.appends += len(batch)
                self.figures.append_s += sum(now_s - since_s for _, since_s in batch)
                return events.LogStored(*key, log.epochs[-1][0], log.end, log.start)
            case effects.AdoptEpoch(epoch=epoch, cut=cut):
                log.adopt(epoch, cut)
                return events.LogAdopted(*key, epoch, log.end)
            case effects.ResetLog(epoch=epoch, snapshot=snapshot):
                log.reset(epoch, snapshot)
                return events.LogAdopted(*key, epoch, log.end)
            case effects.ReadLog(reader=reader, after=after, upto=upto, limit_bytes=limit_bytes):
                return events.LogRead(*key, reader, log.read(after, upto, limit_bytes), log.start)
            case effects.ReadSnapshot(reader=reader):
                return events.SnapshotRead(*key, reader, log.snapshot())
            case effects.TrimLog(before=before, retain_bytes=retain_bytes, retain_s=retain_s):
                if before is not None:
                    log.trim(before)
                elif retain_bytes is not None:
                    log.retain(retain_bytes, retain_s, time.time())
        return None


def _next_batch(waiting: deque[tuple[effects.LogEffect, float]]) -> list[tuple[effects.LogEffect, float]]:
    """The next operation; or all appends up to the next other operation."""
    batch = [waiting.popleft()]
    while isinstance(batch[0][0], effects.AppendToLog) and waiting and isinstance(waiting[0][0], effects.AppendToLog):
        batch.append(waiting.popleft())
    return batch


def folder_name(topic: TopicName, created: int) -> str:
    """The folder of a log. A level of a topic's name has no % and no @."""
    return f"{topic.replace('/', '%')}@{created}"
