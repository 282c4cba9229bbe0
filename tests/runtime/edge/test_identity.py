"""The run number of a node: it rises, also when the node has lost its folder and its clock is slow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tocsin.runtime.edge.identity import Identity


def test_run_rises_with_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.runtime.edge.identity.time.time", lambda: 1_000.0)
    runs = []
    for _ in range(3):
        node = Identity(tmp_path)
        node.start_run()
        runs.append(node.run)
    assert runs == [1_000_000, 1_000_001, 1_000_002]


def test_new_run_of_a_node_follows_the_one_that_the_root_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.runtime.edge.identity.time.time", lambda: 1_000.0)
    Identity(tmp_path).start_run()
    shutil.rmtree(tmp_path)
    monkeypatch.setattr("tocsin.runtime.edge.identity.time.time", lambda: 10.0)
    node = Identity(tmp_path)
    node.start_run()
    assert node.run == 10_000
    node.learn(1_000_000)
    node.start_run()
    assert node.run == 1_000_001
