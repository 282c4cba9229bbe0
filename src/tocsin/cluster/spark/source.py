"""The feed log as a Spark streaming source.

A row is one frame of the log, not one record: few rows pass from Python to the JVM, which splits and parses them.
Offsets are positions in the log, so reading between two of them always gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from tocsin.cluster.feed.feedlog_reader import FeedLogReader

BATCH_BYTES = 16 << 20
"""The most bytes of the log in one micro-batch: a backlog is read in bounded pieces."""

Row = tuple[int, int, str]


class FeedLogSource(DataSource):
    """`spark.readStream.format("tocsin_feedlog").option("directory", …)`: position, next position, JSON lines."""

    @classmethod
    def name(cls) -> str:
        return "tocsin_feedlog"

    def schema(self) -> str:
        return "position BIGINT, next BIGINT, lines STRING"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return FeedLogStream(Path(self.options["directory"]), int(self.options.get("start", "0")))


class FeedLogStream(SimpleDataSourceStreamReader):
    """Runs in a Python process that Spark keeps as long as the query runs."""

    def __init__(self, directory: Path, start: int = 0) -> None:
        self._directory = directory
        self._start = start
        self._reader: FeedLogReader | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"position": self._start}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Row], dict[str, int]]:
        rows, end = self._rows(start["position"], None)
        return iter(rows), {"position": end}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Row]:
        rows: list[Row] = []
        position = start["position"]
        while position < end["position"]:
            before = position
            more, position = self._rows(position, end["position"])
            if position == before:
                break
            rows += more
        return iter(rows)

    def _rows(self, start: int, end: int | None) -> tuple[list[Row], int]:
        if self._reader is None:
            self._reader = FeedLogReader(self._directory)
        # The log drops only frames that are already in the dataset or have no records: missing frames are not needed.
        start = max(start, self._reader.start)
        frames, position = self._reader.read(start, BATCH_BYTES, end)
        # A frame without records holds only the answer to a request.
        rows = [(frame.position, frame.next_position, frame.payload.decode()) for frame in frames if frame.count]
        return rows, position
