"""The data cluster on a real Spark standalone cluster: a master and two workers from the installed pyspark."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pyspark
import pytest

from tests.cluster.spark.standalone_child import LARGE
from tocsin.cluster.spark.archive import OPTIONS, java_options
from tocsin.cluster.spark.session import require_java
from tocsin.wire.errors import TocsinError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

PROJECT = Path(__file__).parent.parent.parent.parent


SECRET = "a secret of Spark's processes"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(
    command: list[str], environment: dict[str, str], ready: str
) -> tuple[subprocess.Popen[str], threading.Thread]:
    """Start a process and wait for the text `ready`; a thread reads on, so that a full pipe does not block it."""
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    is_ready, lines_read = threading.Event(), []

    def read() -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                lines_read.append(line)
                if ready in line:
                    is_ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert is_ready.wait(60), "".join(lines_read[-20:])
    return process, reader


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    try:
        require_java()
    except TocsinError as error:
        pytest.skip(error.message)
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    environment["SPARK_DAEMON_MEMORY"] = "256m"
    environment["SPARK_DAEMON_JAVA_OPTS"] = java_options().get(OPTIONS, "") + " -Dspark.authenticate=true"
    environment["_SPARK_AUTH_SECRET"] = SECRET
    port, page = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    daemon = [str(home / "bin" / "spark-class")]
    roles = [
        f"master.Master --host 127.0.0.1 --port {port} --webui-port {page}".split(),
        *(
            f"worker.Worker --host 127.0.0.1 --cores 1 --memory 700m --webui-port 0 --work-dir {folder} {url}".split()
            for folder in (tmp_path / "worker-1", tmp_path / "worker-2")
        ),
    ]
    started = []
    try:
        for name, *options in roles:
            ready = "elected leader" if name == "master.Master" else "Successfully registered"
            started.append(start([*daemon, f"org.apache.spark.deploy.{name}", *options], environment, ready))
        with urlopen(f"http://127.0.0.1:{page}/json/") as answer:
            assert len(json.load(answer)["workers"]) == 2
        yield url
    finally:
        for process, _ in reversed(started):
            process.terminate()
        for process, reader in started:
            process.wait(timeout=30)
            reader.join(timeout=30)


def test_application_runs_on_a_standalone_cluster(master: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    child = subprocess.run(
        [sys.executable, "-m", "tests.cluster.spark.standalone_child", str(tmp_path / "data"), master, str(secret)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    report = json.loads(child.stdout.splitlines()[-1])
    assert report["authenticated"]
    assert report["executors"] == 3, "two executors and the driver"
    assert report["rows"] == 2 * 3 + LARGE
    near, far = [f"r{number}" for number in range(3)], [f"far{number}" for number in range(3)]
    assert report["results"] == {
        "OfKind": {"('fire',)": near, "('flood',)": far},
        "NearMe": {"('ann', 500.0)": near},
    }
