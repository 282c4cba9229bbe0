"""A quick start of Spark: classes from an archive, and Python processes that compile nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from tocsin.cluster.spark import archive
from tocsin.cluster.spark.python import interpreter
from tocsin.cluster.spark.session import Session


def _where_pyspark_is(_: int) -> tuple[str, list[str]]:
    return pyspark.__file__, sys.path


@pytest.mark.spark
def test_workers_import_the_installed_pyspark(spark: Session) -> None:
    [(file, path)] = spark.sparkContext.parallelize([0], 1).map(_where_pyspark_is).collect()
    assert Path(file).samefile(pyspark.__file__)
    assert not [entry for entry in path if entry.endswith(("pyspark.zip", ".jar"))]


def test_own_spark_of_the_user_starts_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert Path(interpreter()).name == "tocsin-spark-python"
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert interpreter() == sys.executable


@pytest.mark.spark
def test_jvm_maps_the_archive(spark: Session) -> None:
    file = archive.archive_file()
    if not file.exists():
        pytest.skip("no archive of Spark's classes; `make prepare` makes one")
    java = spark.sparkContext._jvm
    assert java is not None
    pid = java.java.lang.ProcessHandle.current().pid()
    assert str(file) in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def test_java_gets_no_options_without_an_archive_or_with_other_jars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "with blank.jsa"
    monkeypatch.setattr(archive, "archive_file", lambda: file)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert archive.java_options() == {}
    file.touch()
    assert f'"-XX:SharedArchiveFile={file}"' in archive.java_options()[archive.OPTIONS]
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert archive.java_options() == {}


def test_unfinished_archive_is_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(archive, "archive_file", lambda: tmp_path / "share" / "spark.jsa")

    def half_written(settings: dict[str, str]) -> Session:
        Path(settings[archive.OPTIONS].partition("AtExit=")[2].partition('"')[0]).write_bytes(b"half")
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        archive.make_archive(half_written, lambda _: None)
    assert list((tmp_path / "share").iterdir()) == []
