"""The state file: complete or absent, and never another program's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.client import state_file
from tocsin.client.errors import ClientError
from tocsin.client.progress import SubscriptionProgress
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId


def test_state_file_keeps_handled_cursor_and_not_received_one(tmp_path: Path) -> None:
    progress = SubscriptionProgress.at(SubscriptionId("s"), ChannelName("C"), {"kind": "fire"}, Cursor(1, 5))
    progress.receive(Cursor(1, 9))
    state_file.save(tmp_path / "state", state_file.SavedState.of("ann", [progress]))
    state = state_file.load(tmp_path / "state")
    assert state is not None and state.user == "ann"
    [loaded] = state.progress()
    assert (loaded.received, loaded.handled, loaded.parameters) == (Cursor(1, 5), Cursor(1, 5), {"kind": "fire"})
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_file_of_another_kind_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("chapter one", encoding="utf-8")
    with pytest.raises(ClientError, match=r"thesis\.txt is not a subscriber's state"):
        state_file.load(path)
    assert state_file.load(tmp_path / "none") is None
