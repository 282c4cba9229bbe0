"""Pulls results from the data cluster, for the broker's logic: it decides what to fetch, and when to try again.

A pull is tried once. When several channels have new results at the same moment, one request pulls all of them. The data
cluster answers it from memory; a channel that the answer leaves out is pulled by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from tocsin.broker import events
from tocsin.broker.effects import CancelFetch, Fetch
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.runtime.broker.connecting import error_of, reason_of
from tocsin.runtime.http.answers import NDJSON
from tocsin.runtime.http.logs import logger
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError

CHUNK_BYTES = 128 << 10
"""An event carries results of about this size, so that one large fetch does not fill a session's queue."""
FETCHES_TOGETHER = 64
"""The most channels in one request for results."""
SUBSCRIPTIONS_TOGETHER = 5_000
"""The most subscriptions in one request for several channels."""
ALONE_S = 600.0
"""How long the broker sends no joint requests after the data cluster did not know one: it may be upgraded."""


class ResultFetches:
    """Runs on the process's loop."""

    def __init__(
        self,
        happened: Callable[[events.Event], None],
        client: Callable[[], httpx.AsyncClient],
        headers: Callable[[], dict[str, str]],
    ) -> None:
        """`happened` takes the events, `headers` are those of every request, with the present token."""
        self._happened = happened
        self._client = client
        self._headers = headers
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._joint: dict[int, Fetch] = {}
        """Fetches that start together when the loop has handled the events that arrived together."""
        self._groups: list[dict[int, Fetch]] = []
        """The unfinished fetches of each request for several channels."""
        self._alone_until_s = 0.0
        """Until then each channel is fetched by itself, because the data cluster does not know joint requests."""
        self._log = logger()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def fetch(self, effect: Fetch) -> None:
        """Start a fetch, together with those of other channels whose results were announced at the same moment."""
        if not self._joint:
            asyncio.get_running_loop().call_soon(self._start_fetches)
        self._joint[effect.fetch] = effect

    def _start_fetches(self) -> None:
        effects, self._joint = list(self._joint.values()), {}
        is_alone = asyncio.get_running_loop().time() < self._alone_until_s
        for group in [[effect] for effect in effects] if is_alone else _groups(effects):
            if len(group) == 1:
                self._fetch_alone(group[0])
            else:
                self._in_background(self._fetch_together({effect.fetch: effect for effect in group}))

    def _fetch_alone(self, effect: Fetch) -> None:
        task = self._fetches[effect.fetch] = self._in_background(self._fetch(effect))
        task.add_done_callback(lambda _: self._fetches.pop(effect.fetch, None))

    async def _fetch_together(self, group: dict[int, Fetch]) -> None:
        """Fetch channels with one request, and those that its answer leaves out by themselves."""
        effects = list(group.values())
        self._groups.append(group)
        try:
            parts = await self._pull_together(effects)
            for effect, part in zip(effects, parts, strict=True):
                if effect.fetch not in group:
                    continue  # it was cancelled
                if part is None:
                    self._fetch_alone(effect)
                else:
                    reader = ResultReader(self._happened, effect.fetch)
                    reader.feed(part[1])
                    reader.end()
                    self._happened(events.FetchEnded(effect.fetch, part[0]))
                del group[effect.fetch]
        except Exception as error:  # any error: the next fetch of each channel waits for the end of this one
            code = error.code if isinstance(error, TocsinError) else Code.NOT_READY
            self._log.warning("cannot pull results", channels=len(group), reason=reason_of(error))
            for number in list(group):
                self._happened(events.FetchFailed(number, code))
        finally:
            self._groups.remove(group)

    async def _pull_together(self, effects: list[Fetch]) -> list[tuple[Cursor, bytes] | None]:
        """The position after the results and the lines of each fetch; None if it must be fetched alone."""
        requests = [
            wire.ResultsRequest(effect.channel, {key: str(cursor) for key, cursor in effect.positions.items()})
            for effect in effects
        ]
        answer = await self._client().post(
            wire.JOINT_RESULTS,
            content=wire.encode(wire.JointResultsRequest(requests)),
            headers={"Accept": NDJSON},
        )
        if answer.status_code in (404, 405):  # a data cluster of an earlier release
            self._alone_until_s = asyncio.get_running_loop().time() + ALONE_S
            return [None] * len(effects)
        if answer.status_code != 200:
            self._client().headers.update(self._headers())
            raise error_of(answer)
        return joint_parts(answer.content, [effect.channel for effect in effects])

    def cancel_fetch(self, effect: CancelFetch) -> None:
        """End the request, so that the data cluster stops reading."""
        self._joint.pop(effect.fetch, None)
        for group in self._groups:
            group.pop(effect.fetch, None)  # the answer for the others is small: it is read to its end
        if (task := self._fetches.get(effect.fetch)) is not None:
            task.cancel()

    async def _fetch(self, effect: Fetch) -> None:
        try:
            await self._pull(effect)
        except Exception as error:  # any error: the channel's next fetch waits for the end of this one
            code = error.code if isinstance(error, TocsinError) else Code.NOT_READY
            self._log.warning("cannot pull results", channel=effect.channel, reason=reason_of(error))
            self._happened(events.FetchFailed(effect.fetch, code))

    async def _pull(self, effect: Fetch) -> None:
        positions: dict[str, str | None] = {identity: str(cursor) for identity, cursor in effect.positions.items()}
        body = wire.encode(wire.ResultsRequest(effect.channel, positions))
        async with self._client().stream("POST", wire.RESULTS, content=body, headers={"Accept": NDJSON}) as answer:
            if answer.status_code != 200:
                await answer.aread()
                self._client().headers.update(self._headers())
                raise error_of(answer)
            upto = wire.decode_cursor(answer.headers[wire.CURSOR_HEADER])
            reader = ResultReader(self._happened, effect.fetch)
            async for data in answer.aiter_raw():
                reader.feed(data)
            reader.end()
        self._happened(events.FetchEnded(effect.fetch, upto))


def _groups(effects: list[Fetch]) -> list[list[Fetch]]:
    """The fetches that share a request. A large one is sent by itself."""
    groups: list[list[Fetch]] = []
    size = 0
    for effect in effects:
        size += len(effect.positions)
        if not groups or size > SUBSCRIPTIONS_TOGETHER or len(groups[-1]) == FETCHES_TOGETHER:
            groups.append([])
            size = len(effect.positions)
        groups[-1].append(effect)
    return groups


def joint_parts(content: bytes, channels: list[ChannelName]) -> list[tuple[Cursor, bytes] | None]:
    """(the cursor after the results, the lines) of each channel in an answer; None for a channel that is left out.

    Raises ValueError if the answer does not fit the requested channels.
    """
    parts: list[tuple[Cursor, bytes] | None] = []
    lines = content.split(b"\n")
    if lines.pop():
        raise ValueError("the answer ends in the middle of a line")
    at = 0
    for channel in channels:
        if at >= len(lines):
            raise ValueError("the answer ends before its last channel")
        line = wire.decode_channel_line(lines[at])
        if line.channel != channel or at + line.lines >= len(lines):
            raise ValueError("the answer has other channels than the request")
        own = b"".join(text + b"\n" for text in lines[at + 1 : at + 1 + line.lines])
        parts.append((wire.decode_cursor(line.cursor), own) if line.cursor else None)
        at += 1 + line.lines
    return parts


class ResultReader:
    """Turns the answer to a pull, JSON lines, into events. Groups the lines by subscription and epoch.

    Only the subscription and the cursor of a line are parsed; the row stays as bytes.
    """

    def __init__(self, happened: Callable[[events.Event], None], fetch: int) -> None:
        self._happened = happened
        self._fetch = fetch
        self._rest = b""
        self._chunks: dict[tuple[SubscriptionId, int], tuple[list[int], list[bytes], list[int]]] = {}
        """(subscription, epoch) → (offsets, rows, sizes of the lines)."""
        self._size_bytes = 0

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._add(line)

    def end(self) -> None:
        """End the answer. Raises ValueError if the answer ends in the middle of a line."""
        if self._rest:
            raise ValueError("the answer ends in the middle of a line")
        self._emit()

    def _add(self, text: bytes) -> None:
        line = wire.decode_line(text)
        cursor = wire.decode_cursor(line.cursor)
        if line.gap:
            self._happened(events.GapFound(self._fetch, line.subscription, cursor))
            return
        chunk = self._chunks.get((line.subscription, cursor.epoch))
        if chunk is None:
            chunk = self._chunks[line.subscription, cursor.epoch] = ([], [], [])
        row = bytes(line.result)
        chunk[0].append(cursor.offset)
        chunk[1].append(row)
        chunk[2].append(len(text) + 1)
        self._size_bytes += len(row)
        if self._size_bytes >= CHUNK_BYTES:
            self._emit()

    def _emit(self) -> None:
        chunks, self._chunks, self._size_bytes = self._chunks, {}, 0
        for (subscription, epoch), (offsets, rows, sizes) in chunks.items():
            self._happened(events.ResultsFetched(self._fetch, subscription, epoch, offsets, rows, sum(sizes)))
