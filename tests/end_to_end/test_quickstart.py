"""The quickstart example works as its README describes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Network

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "examples" / "quickstart"


def test_two_subscribers_receive_the_published_news(network: Network, tmp_path: Path) -> None:
    answer = network.cluster.post("/v1/applications", json={"text": (FOLDER / "news.sql").read_text()})
    assert answer.status_code == 200, answer.text
    environment = os.environ | {
        "TOCSIN_URL": network.stack.cluster_url,
        "TOCSIN_COORDINATOR_URL": network.stack.coordinator_url,
        "TOCSIN_TOKEN": network.token,
    }

    def start(script: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(FOLDER / script), *arguments],
            env=environment,
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    subscribers = [start("subscriber.py", name, "city") for name in ("ann", "bob")]
    try:
        for subscriber in subscribers:
            assert subscriber.stdout is not None
            assert " gets news about city from broker-" in subscriber.stdout.readline()
        printed, errors = start("publisher.py", "city", "Bridge closed", "Market moved").communicate(timeout=90)
        assert printed == "2 published\n", errors
        for subscriber in subscribers:
            assert subscriber.stdout is not None
            news = {subscriber.stdout.readline() for _ in range(2)}
            assert news == {"Bridge closed\n", "Market moved\n"}
    finally:
        for subscriber in subscribers:
            subscriber.send_signal(signal.SIGINT)
            try:
                subscriber.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                subscriber.kill()  # a running subscriber would disturb the following tests
                subscriber.communicate()
                raise
    assert (tmp_path / "ann.state.json").exists()
