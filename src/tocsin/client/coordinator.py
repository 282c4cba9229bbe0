"""The coordinator as clients see it [BAD §3.1: registeruser, requestbroker]."""

from __future__ import annotations

from dataclasses import dataclass
from ssl import SSLContext
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from tocsin.client.errors import ClientError, Unreachable, error_for
from tocsin.client.events import Place
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.wire.errors import Code, error_from

_ANSWER_S = 15.0


@dataclass(frozen=True, slots=True)
class Registration:
    user: SubscriberId
    token: str


class Coordinator:
    """One HTTP connection pool; `close` it."""

    def __init__(self, address: str, token: str | None, tls: SSLContext) -> None:
        self.address = address.rstrip("/")
        self._token = token
        self._http = httpx.AsyncClient(base_url=self.address, verify=tls, timeout=httpx.Timeout(_ANSWER_S, connect=5.0))

    async def register(self, user: str | None, where: dict[str, float]) -> Registration:
        """A subscriber and a token of its own; the same name gets the same subscriber."""
        body: dict[str, Any] = dict(where) if user is None else {"user": user, **where}
        said = await self._ask("/v1/users", body, self._token)
        return Registration(SubscriberId(said["user"]), said["token"])

    async def request_broker(
        self, registration: Registration, where: dict[str, float], avoid: BrokerId | None
    ) -> Place:
        body: dict[str, Any] = dict(where) if avoid is None else {"avoid": [avoid], **where}
        path = f"/v1/users/{quote(registration.user, safe='')}/broker"
        said = await self._ask(path, body, registration.token)
        return Place(BrokerId(said["broker"]), said["address"], said["token"])

    async def _ask(self, path: str, body: dict[str, Any], token: str | None) -> dict[str, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            response = await self._http.post(path, json=body, headers=headers)
        except httpx.TransportError as error:
            raise Unreachable(
                Code.NOT_READY, f"no coordinator at {self.address} ({error or type(error).__name__})"
            ) from error
        return answered(response)

    async def close(self) -> None:
        await self._http.aclose()


def answered(response: httpx.Response) -> dict[str, Any]:
    """The body of a good answer; raises the error a bad one stands for."""
    try:
        said = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        said = None
    if response.is_success and isinstance(said, dict):
        return said
    raise refusal(response)


def refusal(response: httpx.Response) -> ClientError:
    error = error_from(
        response.status_code,
        response.content,
        retry_after=response.headers.get("retry-after", ""),
        message=f"{response.url} answered {response.status_code}",
    )
    return error_for(error.code, error.message, error.retry_after_s)
