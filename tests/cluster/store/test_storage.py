"""Files of the data root on a folder and on object storage: the same behaviour, also with faults."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.object_storage import BUCKET, SECRET, Fault, FaultyProxy, ObjectStore
from tocsin.cluster.store import object_storage
from tocsin.cluster.store.s3_place import S3
from tocsin.cluster.store.storage import Storage
from tocsin.wire.errors import TocsinError


@pytest.fixture(params=["folder", "bucket", "faulty bucket"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "folder":
        yield Storage(str(tmp_path))
        return
    store: ObjectStore = request.getfixturevalue("object_store")
    proxy = FaultyProxy(store.address, slow_s=0.1)
    if request.param == "faulty bucket":
        random = Random(7)
        proxy.choose = lambda _method, _path: random.choices(list(Fault), (7, 1, 1, 1))[0]
    yield Storage(f"s3://{BUCKET}/{tmp_path.name} with a blank", S3(proxy.address))
    proxy.close()


def test_files_are_created_listed_read_and_deleted(storage: Storage) -> None:
    contents = {f"folder/{size}": bytes([size % 251]) * size for size in (0, 1, 1000, 7 << 20)}
    for path, content in contents.items():
        storage.write(path, [content[:10], content[10:]])
    assert set(storage.list("folder")) == set(contents)
    assert {path: storage.read(path).to_pybytes() for path in contents} == contents
    assert storage.missing([*contents, "folder/none", "none"]) == ["folder/none", "none"]
    for path in (*contents, "folder/none"):
        storage.delete(path)
    assert storage.list("folder") == [] and storage.list("none") == []


def test_large_file_is_read_in_parts_from_a_store_with_faults(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_storage, "WHOLE_BYTES", 100)
    proxy, faults = FaultyProxy(object_store.address), cycle((Fault.NONE, Fault.BUSY, Fault.NONE, Fault.ANSWER_LOST))
    storage = Storage(f"s3://{BUCKET}/{tmp_path.name}", S3(proxy.address))
    with storage.create("a.parquet") as file:
        pq.write_table(pa.table({"n": range(10_000)}), file, row_group_size=1000)
    proxy.choose = lambda _method, _path: next(faults)
    with storage.open("a.parquet") as file:
        assert pq.read_table(file)["n"].to_pylist() == list(range(10_000))
    assert proxy.counts[Fault.BUSY] + proxy.counts[Fault.ANSWER_LOST], proxy.counts
    proxy.close()


def test_many_objects_are_deleted_at_the_same_time(object_store: ObjectStore, tmp_path: Path) -> None:
    """Each group of requests of a shared log is an object that upkeep deletes."""
    proxy = FaultyProxy(object_store.address, slow_s=0.5)
    storage = Storage(f"s3://{BUCKET}/{tmp_path.name}", S3(proxy.address, "us-east-1"))
    names = [f"log/{number}" for number in range(16)]
    for name in names:
        storage.write(name, [b"x"])
    proxy.choose = lambda method, path: Fault.SLOW if method == "DELETE" else Fault.NONE
    started_s = time.monotonic()
    storage.delete_all(names)
    assert time.monotonic() - started_s < 4.0
    assert storage.list("log") == [] and proxy.counts[Fault.SLOW] == 16
    proxy.close()


@pytest.mark.parametrize(
    "endpoint", ["https://key:secret@s3.example", "key:secret@s3.example", "https://h/path", "ftp://h"]
)
def test_endpoint_with_credentials_or_a_path_is_refused(endpoint: str) -> None:
    with pytest.raises(TocsinError, match="s3_endpoint") as refused:
        Storage("s3://bucket", S3(endpoint)).check()
    assert "secret" not in str(refused.value)


def test_pickled_storage_opens_the_same_root_and_holds_no_secret(storage: Storage) -> None:
    pickled = pickle.dumps(storage)
    assert SECRET.encode() not in pickled
    storage.write("a", [b"content"])
    assert pickle.loads(pickled).read("a").to_pybytes() == b"content"


@pytest.mark.parametrize("root", ["s3://key:secret@bucket/prefix", "s3://bucket?endpoint_override=x", "s3:///prefix"])
def test_root_with_credentials_options_or_no_bucket_is_refused(root: str) -> None:
    with pytest.raises(TocsinError, match="s3://bucket/prefix"):
        Storage(root).check()


def test_spark_gets_a_path_below_the_root() -> None:
    assert Storage("s3://bucket/prefix/").uri("datasets/a") == "s3a://bucket/prefix/datasets/a"
    assert Storage("/data").uri("datasets/a") == "file:///data/datasets/a"
