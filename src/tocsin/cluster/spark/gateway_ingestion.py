"""Moves the records that a gateway has accepted from its feed log into the dataset.

A thread reads a small backlog from the log, and the driver stores it without Spark: a micro-batch costs 0.1 CPU s
however few records it has. A streaming query moves a large backlog on all cores, and all records of a dataset that
feeds fill too. The thread starts that query when it is needed and stops it later.

Both begin at the position that the catalog has, so a change between them loses and repeats nothing. A large backlog of
a shared log needs no streaming query: the catalog lists its objects, and Spark reads each batch of them once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tocsin.cluster.feed.feedlog_reader import FeedLogTrimmed
from tocsin.cluster.feed.gateway import FeedGateway
from tocsin.cluster.feed.shared_gateway import SharedGateway
from tocsin.cluster.feed.shared_log import LogReader
from tocsin.cluster.spark.dataset_writer import SMALL_BATCH_BYTES, DatasetWriter, FrameRow
from tocsin.cluster.spark.errors import first_line
from tocsin.cluster.spark.ingestion import Ingestion, stream_log
from tocsin.cluster.spark.session import Session
from tocsin.cluster.spark.shared_log import move_objects
from tocsin.model.entities import DatasetKind

POLL_S = 0.02
"""Pause before the thread looks for records again after it found none."""
BATCH_S = {DatasetKind.STREAM: 0.08, DatasetKind.KEYED: 0.25}
"""Least time from one small batch to the next. Each batch becomes a file, and the catalog commits it.

A subscriber waits for the records of a STREAM dataset. Those of a KEYED one, such as positions, matter at the next
execution.
"""
STREAMED_S = 5.0
"""How long the backlog must be small before the streaming query stops: starting one takes about a second."""
_CHECK_S = 0.1
"""Pause between two looks at a streaming query."""


@dataclass(frozen=True)
class StartQuery:
    """Starts a streaming query at the writer's position."""

    start: Callable[[], Ingestion]


class GatewayIngestion:
    """Fills a dataset from its feed log until `stop`, or until an error ends it."""

    def __init__(
        self, writer: DatasetWriter, open_log: Callable[[], LogReader], move_large: Callable[[], int] | StartQuery
    ) -> None:
        """`move_large` moves a part of a large backlog with Spark and returns the position after it, or it is a
        `StartQuery`, which starts a streaming query at the writer's position."""
        self._writer = writer
        self._open_log = open_log
        self._move_large = move_large
        self._reader = open_log()
        self._batch_s = BATCH_S[writer.dataset.kind]
        self._changed = threading.Condition()
        """Guards the fields below, and wakes `catch_up`."""
        self._position = max(writer.position, self._reader.start)
        """Frames before this position are stored, or the writer stores them at this moment."""
        self._requested = 0
        """The position that a caller of `catch_up` waits for."""
        self._ended = False
        self._error: Exception | None = None
        self._wake = threading.Event()
        """Ends a pause of the thread."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"ingest-{writer.dataset.name}", daemon=True)
        self._thread.start()

    def catch_up(self) -> None:
        """Return when every record that the log had at the call is in the dataset."""
        end = self._reader.end
        with self._changed:
            self._requested = max(self._requested, end)
            self._wake.set()
            self._changed.wait_for(lambda: self._position >= end or self._ended)
            if self._error is not None:
                raise self._error
        self._writer.settle()

    def failure(self) -> str | None:
        """The first line of the error that ended the thread; None if it runs or was stopped on purpose."""
        error = self._error or self._writer.storing_error()
        return None if error is None else first_line(error)

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self._writer.takes_small_batch:
                    self._move_small()
                elif isinstance(self._move_large, StartQuery):
                    self._stream(self._move_large)
                else:
                    self._move_objects(self._move_large)
        except Exception as error:
            self._error = error
        finally:
            self._reader.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _move_small(self) -> None:
        """Let the writer store the frames that the log has, or pause if it has none."""
        if self._reader.end <= self._position:
            self._pause(POLL_S)
            return
        started_s = time.monotonic()
        try:
            frames, position = self._reader.read(self._position, SMALL_BATCH_BYTES)
        except FeedLogTrimmed as trimmed:
            # The log drops only frames that are in the dataset or have no records.
            if trimmed.start <= self._position:
                raise
            position = trimmed.start
        else:
            self._writer.add_small_batch([FrameRow.of(frame) for frame in frames if frame.count])
        self._advance(position)
        self._pause(self._batch_s - (time.monotonic() - started_s))

    def _move_objects(self, move: Callable[[], int]) -> None:
        """Let Spark move a part of the backlog, or pause if there is none."""
        if self._reader.end <= self._position:
            self._pause(POLL_S)
            return
        self._writer.settle()
        self._advance(move())

    def _stream(self, start_query: StartQuery) -> None:
        """Run a streaming query until the backlog has been small for a while."""
        query = start_query.start()
        try:
            small_since_s = time.monotonic()
            while not self._stopping and time.monotonic() - small_since_s < STREAMED_S:
                if not self._writer.takes_small_batch:
                    small_since_s = time.monotonic()
                end = self._reader.end
                if self._requested > self._position:
                    query.catch_up()
                    self._advance(end)
                query.check()
                self._pause(_CHECK_S)
        finally:
            query.stop()
        self._writer.begin()
        self._advance(self._writer.position)

    def _advance(self, position: int) -> None:
        with self._changed:
            self._position = max(self._position, position)
            self._changed.notify_all()

    def _pause(self, pause_s: float) -> None:
        if pause_s > 0 and not self._stopping:
            self._wake.wait(pause_s)
            self._wake.clear()


def start_gateway(
    session: Session, writer: DatasetWriter, gateway: FeedGateway | SharedGateway, scratch: Path
) -> GatewayIngestion:
    """Fill a dataset from its log, from the writer's position on. `scratch` is a local folder for Spark."""
    writer.begin()
    if isinstance(gateway, FeedGateway):
        log = gateway.log_directory
        query = StartQuery(lambda: stream_log(session, writer, log, scratch))
        return GatewayIngestion(writer, gateway.log_reader, query)
    shared = gateway.log_reader()
    return GatewayIngestion(writer, gateway.log_reader, lambda: move_objects(session, writer, shared))
