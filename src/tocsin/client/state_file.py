"""A file with a subscriber's subscriptions and cursors, so that a restarted program continues where it stopped.

The file is written completely and then renamed: a crash leaves the old content or the new one. It holds no token.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tocsin.client.errors import ClientError
from tocsin.client.progress import SubscriptionProgress
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.wire.errors import Code


class SavedSubscription(msgspec.Struct):
    channel: ChannelName
    parameters: dict[str, Any]
    cursor: str
    """The application has handled every result before this cursor."""


class SavedState(msgspec.Struct):
    user: str
    subscriptions: dict[SubscriptionId, SavedSubscription]

    @classmethod
    def of(cls, user: str, subscriptions: Iterable[SubscriptionProgress]) -> SavedState:
        """The state to save. Subscriptions whose parameters are not known yet are left out."""
        saved = {
            progress.subscription: SavedSubscription(progress.channel, progress.parameters, str(progress.handled))
            for progress in subscriptions
            if progress.parameters is not None
        }
        return cls(user, saved)

    def progress(self) -> list[SubscriptionProgress]:
        return [
            SubscriptionProgress.at(identity, saved.channel, saved.parameters, cursor)
            for identity, saved in self.subscriptions.items()
            if (cursor := Cursor.parse(saved.cursor)) is not None
        ]


def load(path: Path) -> SavedState | None:
    """The saved state; None if there is no file. Raises ClientError for another kind of file, to keep it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(content, type=SavedState)
    except msgspec.DecodeError as error:
        raise ClientError(
            Code.BAD_REQUEST, f"{path} is not a subscriber's state ({error}); remove it or name another file"
        ) from error


def save(path: Path, state: SavedState) -> None:
    part = path.with_name(path.name + ".part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(state))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
