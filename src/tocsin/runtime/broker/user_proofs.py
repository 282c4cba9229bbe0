"""Proves to the data cluster for which users this broker acts.

With a coordinator, one voucher stands for up to 1,000 users whose home is this broker, connected or not. Without a
voucher the broker shows the user's own token, as long as that is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import httpx
import msgspec

from tocsin.leaders.clients import leading_client
from tocsin.model.ids import SubscriberId
from tocsin.runtime.broker.connecting import reason_of, tls_context
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.http.logs import logger
from tocsin.wire import cluster as wire
from tocsin.wire import link

_TIMEOUT = httpx.Timeout(10.0, connect=5.0)


class UserProofs:
    def __init__(self, process: BrokerProcess, cluster: Callable[[], httpx.AsyncClient]) -> None:
        self._process = process
        self._cluster = cluster
        self._coordinator: httpx.AsyncClient | None = None
        """Made for the first voucher and kept: a new client costs more than the request."""
        self._log = logger()

    async def close(self) -> None:
        if self._coordinator is not None:
            await self._coordinator.aclose()

    async def prove(self, users: Iterable[SubscriberId]) -> set[SubscriberId]:
        """Prove these users at the data cluster, and return those that it believes."""
        named = sorted(set(users))
        proven: set[SubscriberId] = set()
        for start in range(0, len(named), wire.MOST_PROOFS):
            proven |= await self._prove(named[start : start + wire.MOST_PROOFS])
        return proven

    async def _prove(self, users: Sequence[SubscriberId]) -> set[SubscriberId]:
        voucher = await self._voucher(users)
        vouched = set() if voucher is None else set(voucher.users)
        now_s, tokens = self._process.now_s(), self._process.user_tokens
        own = [tokens.of(user, now_s) for user in users if user not in vouched]
        shown = [token for token in own if token is not None]
        if voucher is not None and vouched:
            shown.insert(0, voucher.token)
        if not shown:
            return set()
        path = wire.USERS.format(broker=self._process.id)
        answer = await self._cluster().post(path, content=wire.encode(wire.UserProofs(shown[: wire.MOST_PROOFS])))
        return set(wire.decode_proven(answer.content).users) if answer.status_code == 200 else set()

    async def _voucher(self, users: Sequence[SubscriberId]) -> link.Voucher | None:
        """The coordinator's voucher for those of the users that it has assigned to this broker."""
        settings = self._process.settings
        if settings.coordinator is None:
            return None
        headers = {"Authorization": f"Bearer {settings.secret('coordinator')}"}
        body = msgspec.json.encode(link.VoucherRequest(list(users)))
        try:
            client = self._coordinator_client(settings.coordinator)
            answer = await client.post(link.VOUCHERS.format(broker=self._process.id), content=body, headers=headers)
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=link.Voucher)
        except (httpx.HTTPError, OSError, msgspec.DecodeError) as error:
            self._log.warning("the coordinator does not vouch for users", reason=reason_of(error))
            return None

    def _coordinator_client(self, address: str) -> httpx.AsyncClient:
        if self._coordinator is None:
            tls = tls_context(address, self._process.settings.ca)
            self._coordinator = leading_client(address, timeout=_TIMEOUT, verify=tls or True)
        return self._coordinator
