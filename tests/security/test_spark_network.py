"""Spark's processes listen on loopback only, or ask each other for a secret."""

from __future__ import annotations

import os
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.cluster.spark.network import network_settings, use_secret
from tocsin.cluster.spark.session import Session
from tocsin.runtime.http.settings import load_settings
from tocsin.wire.errors import TocsinError


@pytest.mark.spark
def test_spark_of_a_local_master_listens_on_loopback_only(spark: Session) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = psutil.Process(gateway.proc.pid)
    listening = set()
    for process in (java, *java.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a Python worker may end at any time
            connections = process.net_connections(kind="inet")
            listening |= {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
    assert listening
    for text in listening:
        address = ip_address(text)
        assert (getattr(address, "ipv4_mapped", None) or address).is_loopback, text


@pytest.mark.parametrize("master", ["yarn", "k8s://https://example.org"])
def test_sessions_beyond_this_machine_are_authenticated(master: str) -> None:
    assert network_settings(master)["spark.authenticate"] == "true"


def test_secret_of_a_standalone_cluster_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SPARK_AUTH_SECRET", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.setenv(name, "restored after the test")
        monkeypatch.delenv(name)
    assert not network_settings("spark://example.org:7077")
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    use_secret(str(file))
    assert network_settings("spark://example.org:7077")["spark.authenticate"] == "true"
    settings = Path(os.environ["PYSPARK_SUBMIT_ARGS"].split()[1])
    assert settings.read_text() == "spark.authenticate.secret=s3cret\n"
    assert settings.parent.stat().st_mode & 0o077 == 0
    assert "s3cret" not in os.environ["PYSPARK_SUBMIT_ARGS"]


def test_standalone_master_without_a_secret_is_refused(tmp_path: Path) -> None:
    def load(**flags: object) -> ClusterProcessSettings:
        return load_settings(ClusterProcessSettings, {"master": "spark://example.org:7077", **flags}, {})

    with pytest.raises(TocsinError, match="spark_secret_file"):
        load()
    file = tmp_path / "secret"
    file.write_text("s3cret")
    assert load(spark_secret_file=str(file)).spark_secret_file == str(file)
    assert load(insecure=True).insecure
