"""The state file: complete or absent, and never another program's file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tocsin.client import Subscriber, state_file
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


def test_saving_goes_on_after_the_disk_refused_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.client.subscriber._SAVE_S", 0.01)
    attempts = 0
    save = state_file.save

    def fail_at_first(path: Path, state: state_file.SavedState) -> None:
        nonlocal attempts
        attempts += 1
        if attempts <= 2:
            raise OSError(28, "No space left on device")
        save(path, state)

    monkeypatch.setattr(state_file, "save", fail_at_first)

    async def scenario() -> None:
        async with Subscriber("http://127.0.0.1:9", user="ann", token="t", state=tmp_path / "state"):
            async with asyncio.timeout(10):
                while not (tmp_path / "state").exists():
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert attempts >= 3
