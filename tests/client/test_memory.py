"""The state file is whole or not there, and never somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.client import memory
from tocsin.client.errors import ClientError
from tocsin.client.standing import Standing
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId


def test_what_was_handled_is_remembered_and_not_what_was_only_received(tmp_path: Path) -> None:
    standing = Standing.at(SubscriptionId("s"), ChannelName("C"), {"kind": "fire"}, Cursor(1, 5))
    standing.arrived(Cursor(1, 9))
    memory.save(tmp_path / "state", memory.of("ann", [standing]))
    loaded = memory.load(tmp_path / "state")
    assert loaded is not None and loaded.user == "ann"
    [again] = memory.standings(loaded)
    assert (again.received, again.handled, again.parameters) == (Cursor(1, 5), Cursor(1, 5), {"kind": "fire"})
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_file_that_is_something_else_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("chapter one", encoding="utf-8")
    with pytest.raises(ClientError, match=r"thesis\.txt is not a subscriber's state"):
        memory.load(path)
    assert memory.load(tmp_path / "none") is None
