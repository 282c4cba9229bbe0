"""Start of a coordinator: the lock on its folder, take-over of a store, files with secrets, the admin token."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from tests.runtime.coordinator.harness import coordinator
from tocsin.wire.errors import TocsinError


def test_second_coordinator_is_refused_on_a_folder_but_takes_over_a_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = f"sqlite:///{tmp_path / 'shared.sqlite'}"
        with pytest.raises(TocsinError, match="taken over"):
            async with coordinator(tmp_path / "one", store=store) as first:
                await first.user("ada")
                with pytest.raises(TocsinError, match="another coordinator is running"):
                    async with coordinator(tmp_path / "one", store=store):
                        pass
                async with coordinator(tmp_path / "two", store=store) as second:
                    assert (await second.user_view("ada"))["user"] == "ada"
                    refused = await first.admin.post("/v1/users", json={"user": "bob"})
                    assert refused.status_code == 503

    asyncio.run(scenario())


def test_files_with_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path / "state"):
            pass

    asyncio.run(scenario())
    folder = tmp_path / "state"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("admin-token", "signing-key.pem"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_removing_the_token_file_makes_a_new_admin_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            first = running.first_token
        async with coordinator(tmp_path) as running:
            assert running.first_token is None
        (tmp_path / "admin-token").unlink()
        async with coordinator(tmp_path) as running:
            assert running.first_token not in (None, first)
            assert (await running.admin.get("/v1/status")).status_code == 200

    asyncio.run(scenario())
