"""A file that remembers subscriptions and cursors, so that a program that is started again goes on where it was.

Written whole and renamed into place: a crash leaves the old one or the new one. It holds no token.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tocsin.client.errors import ClientError
from tocsin.client.standing import Standing
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.wire.errors import Code


class Remembered(msgspec.Struct):
    channel: ChannelName
    parameters: dict[str, Any]
    cursor: str


class Memory(msgspec.Struct):
    user: str
    subscriptions: dict[SubscriptionId, Remembered]


def load(path: Path) -> Memory | None:
    """None if there is no file yet; raises if there is one that is not ours, rather than overwrite it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(content, type=Memory)
    except msgspec.DecodeError as error:
        raise ClientError(
            Code.BAD_REQUEST, f"{path} is not a subscriber's state ({error}); remove it or name another file"
        ) from error


def save(path: Path, memory: Memory) -> None:
    part = path.with_name(path.name + ".part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(memory))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def standings(memory: Memory) -> list[Standing]:
    found = []
    for name, one in memory.subscriptions.items():
        cursor = Cursor.parse(one.cursor)
        if cursor is not None:
            found.append(Standing.at(name, one.channel, one.parameters, cursor))
    return found


def of(user: str, held: Iterable[Standing]) -> Memory:
    return Memory(
        user,
        {
            one.subscription: Remembered(one.channel, one.parameters, str(one.handled))
            for one in held
            if one.parameters is not None
        },
    )
