"""The asyncio publisher: it sends records in batches and retries each batch until the data cluster answers.

    async with Publisher("http://127.0.0.1:8571", token) as publisher:
        published = await publisher.publish("EmergencyReports", [{"report_id": "r1", "kind": "fire"}])

An answer means that the records are on disk. A batch without an answer (the connection broke, the server restarts, 429,
503) is sent again with the same Idempotency-Key, so that the data cluster stores it once.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
import msgspec

from tocsin.client.coordinator import response_error
from tocsin.client.errors import ClientError, Unreachable
from tocsin.client.tls import Verify, context_for
from tocsin.leaders.clients import leading_client
from tocsin.wire.errors import Code

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 1_000
_SHORTEST_S = 0.2
"""The first pause between two attempts."""

Record = Any
"""A dict, a msgspec Struct, a dataclass, or JSON as bytes."""


class Refusal(msgspec.Struct, frozen=True):
    """A record that does not fit its dataset. The other records of its batch are stored."""

    index: int
    """The position of the record among the published ones, from 0."""
    field: str | None
    reason: str


class Published(msgspec.Struct):
    """The outcome of a publication."""

    accepted: int = 0
    duplicates: int = 0
    """Records whose key was stored before."""
    refused: list[Refusal] = []
    """The first refused records; `refused_total` counts all."""
    refused_total: int = 0
    replayed: bool = False
    """True if a batch had been stored before: the data cluster repeated its earlier answer."""
    retries: int = 0
    """Attempts after the first one."""
    notices: list[str] = []
    """The server's remarks on accepted records, such as an alert that refers to an unknown alert."""

    def add(self, other: Published, first_index: int) -> None:
        self.accepted += other.accepted
        self.duplicates += other.duplicates
        self.refused += [Refusal(first_index + record.index, record.field, record.reason) for record in other.refused]
        self.refused_total += other.refused_total
        self.replayed = self.replayed or other.replayed
        self.retries += other.retries
        self.notices += other.notices


class Publisher:
    """Retries each batch for `give_up_s` seconds and then raises `Unreachable`.

    Pauses between attempts double up to `longest_s` seconds, unless the server asks for a longer one.
    """

    def __init__(
        self,
        cluster: str,
        token: str | None = None,
        *,
        give_up_s: float = 300.0,
        longest_s: float = 30.0,
        verify: Verify = True,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = leading_client(
            cluster,
            headers=headers,
            verify=context_for(verify),
            transport=transport,
            timeout=httpx.Timeout(60.0, connect=10.0),
        )
        self.address = cluster.rstrip("/")
        self._give_up_s = give_up_s
        self._longest_s = longest_s
        self._sleep = sleep
        self._clock_s = clock_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def publish(self, dataset: str, records: Iterable[Record] | AsyncIterable[Record]) -> Published:
        """Publish all records in their order, in as many requests as needed, one after the other."""
        total, sent = Published(), 0
        async for batch in _batches(records):
            total.add(await self.publish_lines(dataset, batch), sent)
            sent += len(batch)
        return total

    async def publish_lines(self, dataset: str, lines: list[bytes], key: str | None = None) -> Published:
        """Publish JSON lines as one request. A batch with the `key` of an earlier batch is not stored again."""
        return await self._post_until_answered(dataset, b"\n".join(lines), "application/x-ndjson", key)

    async def publish_cap(self, dataset: str, alert: bytes | str, key: str | None = None) -> Published:
        """Publish an alert of the Common Alerting Protocol 1.2, as XML. Sending it again stores nothing twice."""
        body = alert.encode() if isinstance(alert, str) else alert
        return await self._post_until_answered(dataset, body, "application/cap+xml", key)

    async def _post_until_answered(self, dataset: str, body: bytes, content_type: str, key: str | None) -> Published:
        headers = {"Content-Type": content_type, "Idempotency-Key": key or uuid.uuid4().hex}
        path = f"/v1/datasets/{quote(dataset, safe='')}/records"
        deadline_s = self._clock_s() + self._give_up_s
        pause_s, retries = _SHORTEST_S, 0
        while True:
            try:
                published = await self._send(path, body, headers)
                published.retries = retries
                return published
            except ClientError as error:
                if not error.code.retry:
                    raise
                # Jitter keeps many publishers from returning together.
                wait_s = max(pause_s, error.retry_after_s or 0.0) * random.uniform(1.0, 1.5)
                if self._clock_s() + wait_s > deadline_s:
                    raise
            await self._sleep(wait_s)
            retries += 1
            pause_s = min(self._longest_s, pause_s * 2)

    async def _send(self, path: str, body: bytes, headers: dict[str, str]) -> Published:
        try:
            response = await self._http.post(path, content=body, headers=headers)
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(
                Code.NOT_READY,
                f"no answer from {self.address} ({reason}); is `tocsin up` running, is the address right?",
            ) from error
        try:
            answer = msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            answer = None
        # A 400 with the list of refused records is an answer, not a failure: it says that all records were refused.
        if isinstance(answer, dict) and "refused_total" in answer:
            return msgspec.convert(answer, Published)
        raise response_error(response)


def encoded(record: Record) -> bytes:
    return record.strip() if isinstance(record, bytes) else msgspec.json.encode(record)


class Batching:
    """Groups lines into batches that fit a request."""

    def __init__(self, records: int = BATCH_RECORDS, size_bytes: int = BATCH_BYTES) -> None:
        self._records, self._size_bytes = records, size_bytes
        self._lines: list[bytes] = []
        self._bytes = 0

    def add(self, line: bytes) -> list[bytes] | None:
        """Add a line. Returns the batch before it if the line does not fit into that batch, else None."""
        full = self._lines and (len(self._lines) >= self._records or self._bytes + len(line) > self._size_bytes)
        batch: list[bytes] | None = self.rest() if full else None
        self._lines.append(line)
        self._bytes += len(line)
        return batch

    def rest(self) -> list[bytes]:
        batch, self._lines, self._bytes = self._lines, [], 0
        return batch


async def _batches(records: Iterable[Record] | AsyncIterable[Record]) -> AsyncIterable[list[bytes]]:
    batching = Batching()
    async for record in records if isinstance(records, AsyncIterable) else _asynchronous(records):
        if (batch := batching.add(encoded(record))) is not None:
            yield batch
    if rest := batching.rest():
        yield rest


async def _asynchronous(records: Iterable[Record]) -> AsyncIterable[Record]:
    for record in records:
        yield record
