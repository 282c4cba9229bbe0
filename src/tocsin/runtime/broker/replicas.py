"""A broker's connections to the followers of its persistent topics, and the token that opens them."""

from __future__ import annotations

import asyncio
import time

import httpx
import msgspec

from tocsin.broker.topics import effects
from tocsin.leaders.clients import leading_client
from tocsin.model.ids import BrokerId
from tocsin.runtime.broker.connecting import tls_context
from tocsin.runtime.broker.replica_link import ReplicaLink, Report
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.link import REPLICA_TOKENS, ReplicaToken

_TOKEN_S = 120.0
"""How long a token is used for further connections; it is valid for longer."""
_TIMEOUT = httpx.Timeout(10.0, connect=5.0)


class Replicas:
    def __init__(self, settings: BrokerSettings, report: Report) -> None:
        self._settings = settings
        self._report = report
        self._links: dict[BrokerId, ReplicaLink] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._token = ""
        self._token_until_s = 0.0
        address = settings.coordinator or ""
        self._tls = tls_context(address.replace("http:", "https:"), settings.ca)

    def perform(self, effect: effects.ConnectReplica | effects.DisconnectReplica | effects.SendToReplica) -> None:
        link = self._links.get(effect.broker)
        match effect:
            case effects.ConnectReplica(broker, address) if link is None:
                self._links[broker] = ReplicaLink(broker, address, self.token, self._tls, self._report)
            case effects.DisconnectReplica(broker) if link is not None:
                self._close(self._links.pop(broker))
            case effects.SendToReplica(_, message) if link is not None:
                link.send(message)

    def _close(self, link: ReplicaLink) -> None:
        task = link.close()
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def stop(self) -> None:
        for broker in list(self._links):
            self._close(self._links.pop(broker))
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def token(self) -> str:
        """A token for connections to followers, from the coordinator."""
        settings = self._settings
        if time.monotonic() >= self._token_until_s and settings.coordinator is not None:
            headers = {"Authorization": f"Bearer {settings.secret('coordinator')}"}
            try:
                # The context exists already: loading all authorities would stop this broker for some 30 ms.
                async with leading_client(settings.coordinator, timeout=_TIMEOUT, verify=self._tls or True) as client:
                    path = REPLICA_TOKENS.format(broker=settings.id)
                    answer = await client.post(path, headers=headers)
                    answer.raise_for_status()
                    self._token = msgspec.json.decode(answer.content, type=ReplicaToken).token
            except (httpx.HTTPError, msgspec.DecodeError) as error:
                raise TocsinError(Code.NOT_READY, f"the coordinator gives no token for replicas: {error}") from error
            self._token_until_s = time.monotonic() + _TOKEN_S
        return self._token
