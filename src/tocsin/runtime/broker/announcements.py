"""The broker's stream of announcements from the data cluster: a WebSocket that resumes after the last sequence number.

The sequence number is the only state of the stream. If the broker missed announcements, it pulls results from its
positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from tocsin.broker import events
from tocsin.leaders.addresses import leaders_of
from tocsin.runtime.broker.connecting import pause_s, reason_of, silence_limits, tls_context, try_next
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.http.logs import logger
from tocsin.wire import cluster as wire


class AnnouncementStream:
    """`listen` is the task that keeps the stream open and turns its messages into events of the broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        headers: Callable[[], dict[str, str]],
        happened: Callable[[events.Event], None],
    ) -> None:
        self._leaders = leaders_of(settings.cluster)
        self._broker = settings.id
        self._tls = tls_context(settings.cluster, settings.ca)
        self._headers = headers
        self._happened = happened
        self._sequence: int | None = None
        self._log = logger()
        self.heard = False
        """True while the stream is open."""

    async def listen(self) -> None:
        failures = 0
        while True:
            address = self._leaders.current
            try:
                await self._read(address)
                failures = 0
            except (OSError, TimeoutError, WebSocketException, ValueError) as error:
                failures = 1 if self.heard else failures + 1
                is_refused = isinstance(error, InvalidStatus) and not self._leaders.has_standbys
                if failures == 1 or is_refused:
                    self._log.warning("the stream of announcements is closed", reason=reason_of(error))
                try_next(self._leaders, address, error)
            self.heard = False
            await asyncio.sleep(pause_s(self._leaders, failures))

    async def _read(self, address: str) -> None:
        """Open the stream and read it until it ends."""
        resuming = self._sequence is not None
        options: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls}
        async with connect(
            address.replace("http", "ws", 1) + wire.announcements_path(self._broker, self._sequence),
            additional_headers=self._headers(),
            max_size=64 << 20,
            compression=None,
            **silence_limits(self._leaders),
            **options,
        ) as socket:
            self.heard = True
            async for text in socket:
                self._take(wire.decode_announced(text), resuming)

    def _take(self, message: wire.Announced, resuming: bool) -> None:
        match message:
            case wire.Ready():
                if not resuming:
                    self._happened(events.AnnouncementsMissed())
            case wire.AnnouncementGap():
                self._happened(events.AnnouncementsMissed())
            case wire.Execution(channel=channel, epoch=epoch, execution=execution, finished_s=finished_s):
                ids = [news.id for news in message.subscriptions]
                sizes = [news.bytes for news in message.subscriptions]
                is_last = message.part == message.parts
                self._happened(events.ExecutionAnnounced(channel, epoch, execution, ids, finished_s, sizes, is_last))
                if not is_last:
                    return  # until the last part arrives, a reconnect repeats the execution
            case wire.ChannelProgress() if message.channels:
                cursors = {name: wire.decode_cursor(text) for name, text in message.channels.items()}
                self._happened(events.ProgressAnnounced(cursors))
        self._sequence = message.sequence
