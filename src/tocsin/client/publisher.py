"""Publishing: records in batches, each with a key of its own, sent until it is answered.

    async with Publisher("http://127.0.0.1:8571", token) as publisher:
        published = await publisher.publish("EmergencyReports", [{"report_id": "r1", "kind": "fire"}])

An answer means that the records are on disk. A batch that was not answered (the connection broke, the server restarts,
429, 503) is sent again with the same Idempotency-Key, and is stored once however often it arrives.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
import msgspec

from tocsin.client.coordinator import refusal
from tocsin.client.errors import ClientError, Unreachable
from tocsin.client.tls import Verify, context_for
from tocsin.wire.errors import Code

BATCH_BYTES = 1 << 20
BATCH_RECORDS = 1_000
_SHORTEST_S = 0.2

Record = Any
"""A dict, a msgspec Struct, a dataclass, or JSON as bytes."""


class Refusal(msgspec.Struct, frozen=True):
    """A record that does not fit its dataset. The others of its batch are stored all the same."""

    index: int
    """Its place in what was published, from 0."""
    field: str | None
    reason: str


class Published(msgspec.Struct):
    """What became of the records."""

    accepted: int = 0
    duplicates: int = 0
    """Had been stored before, by their key."""
    refused: list[Refusal] = []
    """The first ones; `refused_total` counts all."""
    refused_total: int = 0
    replayed: bool = False
    """This batch had been stored before: the answer is the one of then."""
    retries: int = 0
    notices: list[str] = []
    """What the server says about records that it took: of alerts, what they refer to and nobody has seen."""

    def add(self, other: Published, first_index: int) -> None:
        self.accepted += other.accepted
        self.duplicates += other.duplicates
        self.refused += [Refusal(first_index + one.index, one.field, one.reason) for one in other.refused]
        self.refused_total += other.refused_total
        self.replayed = self.replayed or other.replayed
        self.retries += other.retries
        self.notices += other.notices


class Publisher:
    """`give_up_s` is how long one batch is tried before `Unreachable` is raised; nothing is given up silently.

    Pauses between tries double up to `longest_s`, unless the server asks for a longer one.
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
        self._http = httpx.AsyncClient(
            base_url=cluster, headers=headers, verify=context_for(verify), transport=transport,
            timeout=httpx.Timeout(60.0, connect=10.0),
        )  # fmt: skip
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
        """All records, in as many requests as they need, one after the other: their order is kept."""
        total, sent = Published(), 0
        async for batch in _batches(records):
            total.add(await self.publish_lines(dataset, batch), sent)
            sent += len(batch)
        return total

    async def publish_lines(self, dataset: str, lines: list[bytes], key: str | None = None) -> Published:
        """One batch of JSON lines as one request. `key` makes it the same batch as an earlier one with that key."""
        return await self._until_answered(dataset, b"\n".join(lines), "application/x-ndjson", key)

    async def publish_cap(self, dataset: str, alert: bytes | str, key: str | None = None) -> Published:
        """One alert of the Common Alerting Protocol 1.2, as XML. Sending it again stores nothing twice."""
        body = alert.encode() if isinstance(alert, str) else alert
        return await self._until_answered(dataset, body, "application/cap+xml", key)

    async def _until_answered(self, dataset: str, body: bytes, content_type: str, key: str | None) -> Published:
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
                # Many publishers must not come back together.
                wait_s = max(pause_s, error.retry_after_s or 0.0) * random.uniform(1.0, 1.5)
                if self._clock_s() + wait_s > deadline_s:
                    raise
            await self._sleep(wait_s)
            retries += 1
            pause_s = min(self._longest_s, pause_s * 2)

    async def _send(self, path: str, body: bytes, headers: dict[str, str]) -> Published:
        try:
            response = await self._http.post(path, content=body, headers=headers)
        except httpx.TransportError as error:  # stored or not: the key makes a repeat harmless
            said = str(error) or type(error).__name__
            raise Unreachable(
                Code.NOT_READY, f"no answer from {self.address} ({said}); is `tocsin up` running, is the address right?"
            ) from error
        try:
            answer = msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            answer = None
        # 400 with the list of refused records says that none was good: an answer, not a failure.
        if isinstance(answer, dict) and "refused_total" in answer:
            return msgspec.convert(answer, Published)
        raise refusal(response)


def encoded(record: Record) -> bytes:
    return record.strip() if isinstance(record, bytes) else msgspec.json.encode(record)


class Batching:
    """Groups lines into batches that fit a request."""

    def __init__(self, records: int = BATCH_RECORDS, size_bytes: int = BATCH_BYTES) -> None:
        self._records, self._size_bytes = records, size_bytes
        self._lines: list[bytes] = []
        self._bytes = 0

    def add(self, line: bytes) -> list[bytes] | None:
        """The batch that this line does not fit into any more, if there is one."""
        full = self._lines and (len(self._lines) >= self._records or self._bytes + len(line) > self._size_bytes)
        batch: list[bytes] | None = self.rest() if full else None
        self._lines.append(line)
        self._bytes += len(line)
        return batch

    def rest(self) -> list[bytes]:
        batch, self._lines, self._bytes = self._lines, [], 0
        return batch


def batches(lines: Iterable[bytes], records: int = BATCH_RECORDS) -> Iterator[list[bytes]]:
    batching = Batching(records)
    for line in lines:
        if (batch := batching.add(line)) is not None:
            yield batch
    if rest := batching.rest():
        yield rest


async def _batches(records: Iterable[Record] | AsyncIterable[Record]) -> AsyncIterable[list[bytes]]:
    if not isinstance(records, AsyncIterable):
        for group in batches(encoded(record) for record in records):
            yield group
        return
    batching = Batching()
    async for record in records:
        if (batch := batching.add(encoded(record))) is not None:
            yield batch
    if rest := batching.rest():
        yield rest
