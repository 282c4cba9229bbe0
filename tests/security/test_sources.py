"""An application reads files of configured folders only, whatever links, dots and patterns its paths contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ClusterAt, publish
from tocsin.cluster.applying import ApplicationRefused, apply
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.sources import Sources
from tocsin.model.entities import Feed
from tocsin.model.ids import DatasetName, FeedName
from tocsin.wire.errors import TocsinError

FORMATS = ClusterSettings().feed_formats


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """`open` may be read; `open/data` is the data root; `secret` lies outside."""
    (tmp_path / "open" / "data" / "state").mkdir(parents=True)
    (tmp_path / "open" / "data" / "state" / "admin-token").write_text("token")
    (tmp_path / "open" / ".ssh").mkdir()
    (tmp_path / "open" / ".ssh" / "key.csv").write_text("key")
    (tmp_path / "open" / "a.csv").write_text("x\n1\n")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "b.csv").write_text("x\n2\n")
    (tmp_path / "open-too").mkdir()
    (tmp_path / "open-too" / "c.csv").write_text("x\n3\n")
    (tmp_path / "open" / "link.csv").symlink_to(tmp_path / "secret" / "b.csv")
    (tmp_path / "open" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "open" / "folder").mkdir()
    (tmp_path / "open" / "folder" / "inner.csv").symlink_to(tmp_path / "secret" / "b.csv")
    (tmp_path / "open" / "fine.csv").symlink_to(tmp_path / "open" / "a.csv")
    return tmp_path


def sources(tree: Path, formats: str = FORMATS) -> Sources:
    return Sources(f"{tree}/open, s3://bucket/public", formats, [tree / "open" / "data"])


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("open/a.csv", "open/a.csv"),
        ("open/folder/../a.csv", "open/a.csv"),
        ("open/fine.csv", "open/a.csv"),
        ("secret/../open/a.csv", "open/a.csv"),
        ("open/missing.csv", "open/missing.csv"),
    ],
)
def test_file_in_a_configured_folder_is_read_by_its_resolved_path(tree: Path, path: str, read: str) -> None:
    assert sources(tree).file(f"{tree}/{path}") == f"{tree}/{read}"
    assert sources(tree).file(f"file://{tree}/{path}") == f"{tree}/{read}"


@pytest.mark.parametrize(
    "path",
    [
        "secret/b.csv", "open/../secret/b.csv", "open/link.csv", "open/out/b.csv", "open/folder", "open-too/c.csv",
        "open/data/state/admin-token", "open/data", "open/.ssh/key.csv", "", "open/{a.csv,../secret/b.csv}", "open/*",
        "open/a.cs?", "open/\0", "open/[a].csv",
    ],
)  # fmt: skip
def test_path_that_leads_out_of_the_folders_is_refused(tree: Path, path: str) -> None:
    for spelled in (f"{tree}/{path}", f"file:{tree}/{path}", f"file://{tree}/{path}", f"FILE://{tree}/{path}"):
        with pytest.raises(TocsinError):
            sources(tree).file(spelled)


@pytest.mark.parametrize(
    ("address", "is_read"),
    [
        ("s3://bucket/public/a.csv", True),
        ("s3://bucket/public/../private/a.csv", False),
        ("s3://other/public/a.csv", False),
        ("s3://bucket/publicity/a.csv", False),
        ("s3a://bucket/public/a.csv", False),
        ("http://169.254.169.254/latest", False),
        ("hdfs://name/etc/passwd", False),
        ("file://other/etc/passwd", False),
        ("/etc/passwd", False),
    ],
)
def test_address_is_read_only_below_a_configured_address(tree: Path, address: str, is_read: bool) -> None:
    if is_read:
        assert sources(tree).file(address) == address
    else:
        with pytest.raises(TocsinError):
            sources(tree).file(address)


def feed(format: str, **options: str) -> Feed:
    return Feed(FeedName("F"), DatasetName("D"), format, options)


def test_feed_reads_a_pattern_below_a_configured_folder(tree: Path) -> None:
    (tree / "open" / "drop").mkdir()
    rules = sources(tree)
    assert rules.feed(feed("json", path=f"{tree}/open/drop")).options["path"] == f"{tree}/open/drop"
    assert rules.feed(feed("csv", PATH=f"{tree}/open/drop/*/x?.csv")).options["PATH"] == f"{tree}/open/drop/*/x?.csv"
    assert rules.feed(feed("rate", rowsPerSecond="1")) == feed("rate", rowsPerSecond="1")


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("json", {"path": "/etc"}),
        ("json", {}),
        ("json", {"path": "{tree}/open/out"}),
        ("json", {"path": "{tree}/*/b.csv"}),
        ("json", {"path": "{tree}/open/{folder,../secret}"}),
        ("json", {"path": "{tree}/open/*/../../secret"}),
        ("json", {"path": "{tree}/open/a.csv", "cleanSource": "delete"}),
        ("json", {"path": "{tree}/open/a.csv", "cleanSource": "archive", "sourceArchiveDir": "/tmp"}),
        ("kafka", {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}),
        ("socket", {"host": "localhost", "port": "22"}),
        ("tocsin_feedlog", {"directory": "/"}),
        ("org.apache.spark.sql.execution.datasources.json.JsonFileFormat", {"path": "/etc"}),
        ("rate", {"path": "/etc"}),
        ("jdbc", {"url": "jdbc:sqlite:/etc/x"}),
    ],
)
def test_feed_with_another_format_path_or_option_is_refused(tree: Path, format: str, options: dict[str, str]) -> None:
    named = {name: value.replace("{tree}", str(tree)) for name, value in options.items()}
    with pytest.raises(TocsinError, match=r"F|outside|pattern"):
        sources(tree).feed(feed(format, **named))


def test_kafka_feed_may_not_name_classes_and_files(tree: Path) -> None:
    rules = sources(tree, "kafka")
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required username='u' password='p';"
    usual = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.sasl.jaas.config": login}
    assert rules.feed(feed("kafka", **usual)).options == usual
    jndi = "com.sun.security.auth.module.JndiLoginModule required user.provider.url='ldap://x';"
    hostile = [
        {"kafka.sasl.jaas.config": jndi},
        {"kafka.interceptor.classes": "x.Y"},
        {"kafka.ssl.truststore.location": "/etc/passwd"},
        {"kafka.sasl.login.callback.handler.class": "x.Y"},
    ]
    for options in hostile:
        with pytest.raises(TocsinError):
            rules.feed(feed("kafka", **options))


@pytest.mark.spark
def test_application_cannot_load_the_token_of_the_administrator(cluster_at: ClusterAt, tmp_path: Path) -> None:
    cluster = cluster_at()
    token = tmp_path / "data" / "state" / "admin-token"
    token.write_text("the token\n")
    link = tmp_path / "innocent.csv"
    link.symlink_to(token)
    for path in (token, link, "/etc/hostname"):
        with pytest.raises(ApplicationRefused, match="setting files"):
            apply(cluster, f"CREATE STATIC DATASET Stolen FROM '{path}' FORMAT csv;", folder=str(tmp_path))
    assert cluster.datasets.all() == []


@pytest.mark.spark
def test_stored_feed_that_is_no_longer_allowed_fails_alone(cluster_at: ClusterAt, tmp_path: Path) -> None:
    (tmp_path / "drop").mkdir()
    text = f"""CREATE STREAM DATASET D (x INT);
    CREATE FEED F INTO D FROM json OPTIONS (path '{tmp_path}/drop');"""
    apply(cluster_at(), text)
    again = cluster_at(files=str(tmp_path / "elsewhere"))
    (live,) = again.datasets.feeds()
    assert "setting files" in (live.query.failure() or "")
    publish(again, "D", [{"x": 1}])
    assert again.dataset("D").writer.version == 1
