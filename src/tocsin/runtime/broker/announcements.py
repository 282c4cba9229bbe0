"""What a broker hears of executions: the data cluster's announcements, over a WebSocket that resumes where it broke.

The sequence last heard is all that is remembered; whatever it does not cover is pulled from the positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from tocsin.broker import events as seen
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.runtime.broker.patience import jittered_s, reason_of, tls_context
from tocsin.runtime.broker.results import cursor_of
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.http.logs import logger


class _News(msgspec.Struct):
    id: SubscriptionId


class _Told(msgspec.Struct, tag_field="type"):
    sequence: int


class _Ready(_Told, tag="ready"):
    pass


class _Execution(_Told, tag="execution"):
    channel: ChannelName
    epoch: int
    execution: int
    finished_s: float
    part: int
    parts: int
    subscriptions: list[_News]


class _Progress(_Told, tag="progress"):
    channels: dict[ChannelName, str] = {}


class _Gap(_Told, tag="gap"):
    pass


_told = msgspec.json.Decoder(_Ready | _Execution | _Progress | _Gap)


class Announcements:
    """`listen` is the task that keeps the stream open."""

    def __init__(
        self, settings: BrokerSettings, headers: Callable[[], dict[str, str]], happened: Callable[[seen.Event], None]
    ) -> None:
        base = settings.cluster.rstrip("/").replace("http", "ws", 1)
        self._address = f"{base}/v1/brokers/{settings.id}/announcements"
        self._tls = tls_context(settings.cluster, settings.ca)
        self._headers = headers
        self._happened = happened
        self._sequence: int | None = None
        self._log = logger()
        self.heard = False
        """Whether announcements are being heard at the moment."""

    async def listen(self) -> None:
        failures = 0
        while True:
            try:
                await self._hear()
                failures = 0
            except (OSError, TimeoutError, WebSocketException, ValueError, msgspec.DecodeError) as error:
                failures = 1 if self.heard else failures + 1
                if failures == 1 or isinstance(error, InvalidStatus):
                    self._log.warning("announcements cannot be heard", reason=reason_of(error))
            self.heard = False
            await asyncio.sleep(jittered_s(failures))

    async def _hear(self) -> None:
        resuming = self._sequence is not None
        query = f"?after={self._sequence}" if resuming else ""
        options: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls}
        async with connect(
            self._address + query, additional_headers=self._headers(), max_size=64 << 20, compression=None,
            open_timeout=10, ping_interval=10, ping_timeout=10, **options,
        ) as socket:  # fmt: skip
            self.heard = True
            async for text in socket:
                self._take(_told.decode(text), resuming)

    def _take(self, told: _Ready | _Execution | _Progress | _Gap, resuming: bool) -> None:
        happened = self._happened
        match told:
            case _Ready():
                if not resuming:
                    happened(seen.AnnouncementsMissed())
            case _Gap():
                happened(seen.AnnouncementsMissed())
            case _Execution():
                news = [one.id for one in told.subscriptions]
                happened(seen.ExecutionAnnounced(told.channel, told.epoch, told.execution, news, told.finished_s))
                if told.part < told.parts:
                    return  # counts as heard with its last part
            case _Progress() if told.channels:
                happened(seen.ProgressAnnounced({name: cursor_of(text) for name, text in told.channels.items()}))
        self._sequence = told.sequence
