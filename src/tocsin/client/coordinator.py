"""The coordinator's REST API for clients [BAD §3.1: registeruser, requestbroker]."""

from __future__ import annotations

from ssl import SSLContext
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from tocsin.client.errors import ClientError, Denied, Unreachable, error_for
from tocsin.client.events import BrokerAddress
from tocsin.coords.coordinate import Coordinate
from tocsin.leaders.clients import leading_client
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.wire.errors import Code, error_from

_ANSWER_S = 15.0
"""Time-out for an answer, in seconds."""


class CoordinatorClient:
    """Registers a subscriber and requests brokers for it. Holds an HTTP connection pool; `close` releases it."""

    def __init__(
        self,
        address: str,
        token: str | None,
        tls: SSLContext,
        user: str | None = None,
        *,
        coordinate: Coordinate | None = None,
        **position: float,
    ) -> None:
        """`position` has `lat` and `lon` in degrees, if they are known; `coordinate` is of the network."""
        self.address = address.rstrip("/")
        self.user = None if user is None else SubscriberId(user)
        """The subscriber's name. If the program gave no name, None until the coordinator has chosen one."""
        self._token = token
        self._user_token: str | None = None
        """The subscriber's own token; None before the registration."""
        self._position: dict[str, Any] = dict(position)
        if coordinate is not None:
            self._position["coordinate"] = msgspec.to_builtins(coordinate)
        self._http = leading_client(address, verify=tls, timeout=httpx.Timeout(_ANSWER_S, connect=5.0))

    async def request_broker(self, avoid: BrokerId | None) -> BrokerAddress:
        """Request a broker other than `avoid`. Registers the subscriber first if necessary."""
        was_registered = self._user_token is not None
        try:
            return await self._request_broker(avoid)
        except Denied:
            if not was_registered:
                raise
            self._user_token = None  # it may have expired; the program's own token may still be valid
            return await self._request_broker(avoid)

    async def _request_broker(self, avoid: BrokerId | None) -> BrokerAddress:
        if self._user_token is None:
            await self._register()
        assert self.user is not None
        body: dict[str, Any] = dict(self._position) if avoid is None else {"avoid": [avoid], **self._position}
        answer = await self._post(f"/v1/users/{quote(self.user, safe='')}/broker", body, self._user_token)
        return BrokerAddress(BrokerId(answer["broker"]), answer["address"], answer["token"])

    async def _register(self) -> None:
        body: dict[str, Any] = dict(self._position) if self.user is None else {"user": self.user, **self._position}
        answer = await self._post("/v1/users", body, self._token)
        self.user, self._user_token = SubscriberId(answer["user"]), answer["token"]

    async def _post(self, path: str, body: dict[str, Any], token: str | None) -> dict[str, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            response = await self._http.post(path, json=body, headers=headers)
        except httpx.TransportError as error:
            raise Unreachable(
                Code.NOT_READY, f"no coordinator at {self.address} ({error or type(error).__name__})"
            ) from error
        return decoded_answer(response)

    async def close(self) -> None:
        await self._http.aclose()


def decoded_answer(response: httpx.Response) -> dict[str, Any]:
    """The body of a successful response. Raises a ClientError for any other response."""
    try:
        answer = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        answer = None
    if response.is_success and isinstance(answer, dict):
        return answer
    raise response_error(response)


def response_error(response: httpx.Response) -> ClientError:
    """The exception for an unsuccessful response of a server or of a proxy in between."""
    error = error_from(
        response.status_code,
        response.content,
        retry_after=response.headers.get("retry-after", ""),
        message=f"{response.url} answered {response.status_code}",
    )
    return error_for(error.code, error.message, error.retry_after_s)
