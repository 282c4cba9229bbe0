"""A broker's link to the data cluster: subscriptions asked for and released, announcements heard, results pulled.

That the data cluster is away only means waiting: what was asked is asked again with growing, jittered pauses, and the
announcements resume from the last sequence heard. A fetch is tried once; the broker's logic decides when again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import msgspec

from tocsin.broker import events as seen
from tocsin.broker.effects import CancelFetch, Fetch, ReleaseBackend, RequestBackend
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.model.subscription import fingerprint
from tocsin.runtime.broker.announcements import Announcements
from tocsin.runtime.broker.patience import jittered_s, reason_of, tls_context
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.broker.results import Pieces, cursor_of
from tocsin.runtime.http.logs import logger
from tocsin.wire.errors import Code

AT_ONCE = 5_000
"""Subscriptions in one request."""
COMPARE_S = 60.0
"""How often what is held there is compared with what is held here."""
SETTLED = 2
"""Comparisons in a row that found the coordinator there before what it did not mention is let go."""
_PAGE = 10_000
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)


class _Granted(msgspec.Struct):
    id: SubscriptionId
    cursor: str


class _Held(msgspec.Struct):
    id: SubscriptionId
    channel: ChannelName


class _Holds(msgspec.Struct):
    subscriptions: int
    fingerprint: str


class _Page(msgspec.Struct):
    subscriptions: list[_Held]
    next: int | None = None


_granted = msgspec.json.Decoder(list[_Granted])


class DataClusterLink:
    """`start` and `stop` it on the process's loop."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        settings = process.settings
        self._url = settings.cluster.rstrip("/")
        self._broker = settings.id
        self._tls = tls_context(settings.cluster, settings.ca)
        self._client: httpx.AsyncClient
        self._orders: deque[RequestBackend | ReleaseBackend] = deque()
        self._ordered = asyncio.Event()
        self._compare_at_s = 0.0
        self._settled = 0
        self._found: tuple[_Holds, _Holds, bool] | None = None
        """The last difference that was looked into. What an earlier run held may stay for long: it is listed once."""
        self.settled: Callable[[], bool] = lambda: False
        """Whether somebody who knows has said whom to serve. Until then what an earlier run of this broker held is
        kept, for whoever it may be."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._log = logger()
        self.announcements = Announcements(settings, self._headers, process.happened)

    def start(self) -> None:
        self._client = httpx.AsyncClient(
            base_url=self._url, headers=self._headers(), timeout=_TIMEOUT, verify=self._tls or True,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=16),
        )  # fmt: skip
        self.in_background(self._place_orders())
        self.in_background(self.announcements.listen())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def in_background(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _headers(self) -> dict[str, str]:
        token = self._process.settings.secret("cluster")
        headers = {"Accept-Encoding": "identity"}
        return headers | ({"Authorization": f"Bearer {token}"} if token else {})

    # -- subscriptions ---------------------------------------------------------------------------------------------

    def ask(self, effect: RequestBackend) -> None:
        self._orders.append(effect)
        self._ordered.set()

    def release(self, effect: ReleaseBackend) -> None:
        self._orders.append(effect)
        self._ordered.set()

    async def _place_orders(self) -> None:
        """In the order they were given: a subscription that is released and wanted again must end up held."""
        failures = 0
        while True:
            if not self._orders:
                await self._idle()
                continue
            batch = self._next_batch()
            try:
                await self._place(batch)
                failures = 0
            except Exception as error:  # whatever it is, nothing could be subscribed any more if this ended
                self._orders.extendleft(reversed(batch))
                failures += 1
                self._log.warning("subscriptions are not taken yet", reason=reason_of(error), in_a_row=failures)
                await asyncio.sleep(jittered_s(failures))

    async def _idle(self) -> None:
        """Until there are orders, or it is time to compare: here, where no order can be under way."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._compare_at_s:
            if self._compare_at_s:
                await self._compare()
            self._compare_at_s = now_s + COMPARE_S
        else:
            self._ordered.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._compare_at_s):
                    await self._ordered.wait()

    def _next_batch(self) -> list[RequestBackend | ReleaseBackend]:
        """Orders of one kind for one channel that follow each other."""
        first = self._orders.popleft()
        batch = [first]
        while self._orders and len(batch) < AT_ONCE:
            following = self._orders[0]
            if type(following) is not type(first) or following.channel != first.channel:
                break
            batch.append(self._orders.popleft())
        return batch

    async def _place(self, batch: list[RequestBackend | ReleaseBackend]) -> None:
        asks = [order for order in batch if isinstance(order, RequestBackend)]
        if not asks:
            wanted = self._process.core.state.backends
            released = [
                order.subscription for order in batch
                if isinstance(order, ReleaseBackend) and order.subscription not in wanted
            ]  # fmt: skip
            if not released:
                return
            body = {"channel": batch[0].channel, "subscriptions": released, "broker": self._broker}
            await self._post("/v1/subscriptions/delete", body)  # a channel that is gone took them with it
            return
        sets = [ask.parameters for ask in asks]
        answer = await self._post(
            "/v1/subscriptions", {"channel": asks[0].channel, "parameters": sets, "broker": self._broker}
        )
        if answer.status_code == 200:
            for ask, granted in zip(asks, _granted.decode(answer.content), strict=True):
                self._process.happened(seen.BackendGranted(ask.key, ask.channel, granted.id, cursor_of(granted.cursor)))
            return
        code, message = _error_of(answer)
        if len(asks) > 1 and code != Code.UNKNOWN_CHANNEL:
            for ask in asks:  # one of them is to blame
                await self._place([ask])
            return
        for ask in asks:
            self._process.happened(seen.BackendRefused(ask.key, code, message))

    async def _compare(self) -> None:
        """What is missing there is asked for anew: somebody released it in our name, or restored an older state.
        What an earlier run of this broker held and nobody wants now is let go."""
        backends = self._process.core.state.backends
        self._settled = self._settled + 1 if self.settled() else 0
        try:
            answer = await self._got(f"/v1/brokers/{self._broker}/holds")
            there = msgspec.json.decode(answer.content, type=_Holds)
            held = [identity for identity, backend in backends.items() if backend.held]
            here = _Holds(len(held), fingerprint(held))
            found = (there, here, self._settled >= SETTLED)
            if there == here:
                self._found = None
            if there == here or found == self._found:
                return
            listed = {identity: channel for channel, identity in await self._held_there()}
        except (httpx.HTTPError, OSError, _Unavailable, ValueError, msgspec.DecodeError) as error:
            self._log.warning("what is held cannot be compared", reason=reason_of(error))
            return
        if self._orders:
            return  # it changed meanwhile
        self._found = found
        missing = [identity for identity, backend in backends.items() if backend.held and identity not in listed]
        if missing:
            self._log.warning("the data cluster lost what is held here; asking again", subscriptions=len(missing))
            self._process.happened(seen.HoldsMissing(missing))
        if self._settled >= SETTLED:
            for identity in listed.keys() - backends.keys():
                self.release(ReleaseBackend(listed[identity], identity))

    async def _held_there(self) -> list[tuple[ChannelName, SubscriptionId]]:
        found: list[tuple[ChannelName, SubscriptionId]] = []
        after: int | None = 0
        while after is not None:
            answer = await self._got("/v1/subscriptions", broker=self._broker, after=after, limit=_PAGE)
            page = msgspec.json.decode(answer.content, type=_Page)
            found += [(one.channel, one.id) for one in page.subscriptions]
            after = page.next
        return found

    async def _got(self, path: str, **parameters: str | int) -> httpx.Response:
        answer = await self._client.get(path, params=parameters)
        if answer.status_code != 200:
            raise _Unavailable(f"{answer.status_code} {_error_of(answer)[1]}")
        return answer

    async def _post(self, path: str, body: object) -> httpx.Response:
        """Raises when it is worth trying again; a refusal is an answer."""
        answer = await self._client.post(path, content=msgspec.json.encode(body))
        if answer.status_code >= 500 or answer.status_code in (401, 403, 408, 429):
            self._client.headers.update(self._headers())  # the token's file may hold a newer one by now
            raise _Unavailable(f"{answer.status_code} {_error_of(answer)[1]}")
        return answer

    # -- results ---------------------------------------------------------------------------------------------------

    def fetch(self, effect: Fetch) -> None:
        task = self._fetches[effect.fetch] = self.in_background(self._fetch(effect))
        task.add_done_callback(lambda _: self._fetches.pop(effect.fetch, None))

    def cancel_fetch(self, effect: CancelFetch) -> None:
        """Ends the request, so the data cluster does not go on reading for nobody."""
        if (task := self._fetches.get(effect.fetch)) is not None:
            task.cancel()

    async def _fetch(self, effect: Fetch) -> None:
        try:
            await self._pull(effect)
        except Exception as error:  # whatever it is, a fetch that never ends would be the channel's last
            code = error.code if isinstance(error, _Unavailable) else str(Code.NOT_READY)
            self._log.warning("results could not be pulled", channel=effect.channel, reason=reason_of(error))
            self._process.happened(seen.FetchFailed(effect.fetch, code))

    async def _pull(self, effect: Fetch) -> None:
        body = {
            "channel": effect.channel,
            "subscriptions": {identity: str(cursor) for identity, cursor in effect.positions.items()},
        }
        headers = {"Accept": "application/x-ndjson"}
        async with self._client.stream(
            "POST", "/v1/results", content=msgspec.json.encode(body), headers=headers
        ) as answer:
            if answer.status_code != 200:
                await answer.aread()
                code, message = _error_of(answer)
                self._client.headers.update(self._headers())
                raise _Unavailable(f"{answer.status_code} {message}", code)
            upto = cursor_of(answer.headers["Tocsin-Cursor"])
            pieces = Pieces(self._process.happened, effect.fetch)
            async for data in answer.aiter_raw():
                pieces.feed(data)
            pieces.end()
        self._process.happened(seen.FetchEnded(effect.fetch, upto))


class _Unavailable(Exception):
    def __init__(self, message: str, code: str = Code.NOT_READY) -> None:
        super().__init__(message)
        self.code = code


def _error_of(answer: httpx.Response) -> tuple[str, str]:
    with suppress(msgspec.DecodeError, KeyError, TypeError):
        error = msgspec.json.decode(answer.content)["error"]
        return str(error["code"]), str(error["message"])
    return str(Code.NOT_READY), answer.reason_phrase
