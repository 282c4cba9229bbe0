"""The root's store: the state of the tree control survives a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.edge.test_tree_control import running_tree
from tocsin.edge.generations import ControlState
from tocsin.runtime.edge.root_store import Results, RootStore


def test_state_is_the_same_after_a_restart(tmp_path: Path) -> None:
    state = running_tree().control.state
    assert state.members and state.placement
    store = RootStore(tmp_path / "root.sqlite")
    assert store.load() == ControlState()
    store.save(state)
    store.accept([Results("Use", "Uses", [b"{}"], 1, 5)])
    store.close()
    store = RootStore(tmp_path / "root.sqlite")
    assert store.load() == replace(state, floors_us={"Use": 5})
    store.close()


def test_floor_never_falls(tmp_path: Path) -> None:
    """A publisher that has moved sends old readings first, so a new generation begins with a lower watermark."""
    store = RootStore(tmp_path / "root.sqlite")
    store.save(running_tree().control.state)
    store.accept([Results("Use", "Uses", [b"{}"], 1, 100)])
    store.accept([Results("Use", "Uses", [], 0, 65)])
    assert store.floors_us() == {"Use": 100}
    store.accept([Results("Use", "Uses", [b"{}"], 1, 130)])
    assert store.load().floors_us == {"Use": 130} and store.result_rows() == {"Use": 2}
    store.close()
