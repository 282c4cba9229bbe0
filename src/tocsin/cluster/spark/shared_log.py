"""Objects of a shared log for Spark: one partition for each object, read by the executors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tocsin.cluster.feed.log_objects import ObjectPlace
from tocsin.cluster.feed.shared_log import SharedLogReader, frames_of
from tocsin.cluster.spark.dataset_writer import DatasetWriter
from tocsin.cluster.spark.file_source import registered
from tocsin.cluster.spark.source import BATCH_BYTES, Row
from tocsin.cluster.store.s3_place import S3
from tocsin.cluster.store.storage import Storage

BATCHES_EACH = 2
"""A batch has so many times BATCH_BYTES for each core."""


def move_objects(session: SparkSession, writer: DatasetWriter, log: SharedLogReader) -> int:
    """Store the next objects after the writer's position, and return the position after them."""
    limit_bytes = BATCH_BYTES * BATCHES_EACH * session.sparkContext.defaultParallelism
    places = log.objects(writer.position, limit_bytes)
    if not places:
        return writer.position
    writer.add_frames(object_frame(session, log.storage, places, writer.position))
    writer.settle()
    return places[-1].next


def object_frame(session: SparkSession, storage: Storage, places: Sequence[ObjectPlace], start: int) -> DataFrame:
    """Rows of position, next position and JSON lines, as the source of a local log gives them."""
    values = [(place.first, place.next, place.path, list(place.left_out.items())) for place in places]
    reader = registered(session, LogObjectSource).read.format(LogObjectSource.name())
    reader = reader.option("root", storage.root).option("s3", json.dumps(storage.s3))
    return reader.option("objects", json.dumps(values)).option("start", start).load()


class LogObjectSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tocsin_log_objects"

    def schema(self) -> str:
        return "position BIGINT, next BIGINT, lines STRING"

    def reader(self, schema: StructType) -> LogObjectReader:
        storage = Storage(self.options["root"], S3(*json.loads(self.options["s3"])))
        places = [
            ObjectPlace(first, next_, path, dict(left_out))
            for first, next_, path, left_out in json.loads(self.options["objects"])
        ]
        return LogObjectReader(storage, places, int(self.options["start"]))


class LogObjectReader(DataSourceReader):
    def __init__(self, storage: Storage, places: Sequence[ObjectPlace], start: int) -> None:
        self._storage = storage
        self._places = places
        self._start = start

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(place) for place in self._places]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        for frame in frames_of(self._storage, [partition.value], self._start):
            yield frame.position, frame.next_position, frame.payload.decode()
