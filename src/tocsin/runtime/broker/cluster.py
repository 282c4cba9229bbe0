"""A broker's client of the data cluster: it subscribes, releases, compares holds and stores updates.

Subscribing and releasing are retried with growing, jittered pauses until the data cluster answers. Updates are tried
once: subscribers repeat them. Announcements come over their own stream (`announcements`), and `result_fetches` pulls
results.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx

from tocsin.broker import events
from tocsin.broker.effects import ReleaseBackend, RequestBackend, StoreUpdates
from tocsin.broker.hosted import BackendKey
from tocsin.leaders.addresses import rotated
from tocsin.leaders.clients import leading_client
from tocsin.model.ids import ChannelName, SubscriberId, SubscriptionId
from tocsin.model.subscription import fingerprint
from tocsin.runtime.broker.announcements import AnnouncementStream
from tocsin.runtime.broker.connecting import error_of, jittered_s, reason_of, tls_context
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.broker.result_fetches import ResultFetches
from tocsin.runtime.broker.user_proofs import UserProofs
from tocsin.runtime.http.logs import logger
from tocsin.wire import cluster as wire
from tocsin.wire.errors import Code, TocsinError

AT_ONCE = 5_000
"""The most subscriptions in one request."""
COMPARE_S = 60.0
"""Pause between two comparisons of the subscriptions that both sides list."""
SETTLED = 2
"""Comparisons in a row with a coordinator, before subscriptions that no subscriber needs are released."""
_MOST_PROOFS = 40
"""Attempts to prove a user before its subscription is refused: about ten minutes."""
_PAGE = 10_000
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_RETRIED_STATUSES = (401, 403, 408, 429)
"""Statuses after which a request is retried, besides 5xx. After 401 and 403 the token's file may be renewed."""
_SUBSCRIBERS_OWN = frozenset({Code.UNKNOWN_DATASET, Code.NOT_A_FEED_TARGET})
"""Refusals of a whole request that its subscribers caused: they named a dataset that takes no updates."""


class DataClusterLink:
    """`start` and `stop` it on the process's loop."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        settings = process.settings
        self._addresses = settings.cluster
        self._broker = settings.id
        self._tls = tls_context(settings.cluster, settings.ca)
        self._client: httpx.AsyncClient
        self._orders: deque[RequestBackend | ReleaseBackend] = deque()
        self._ordered = asyncio.Event()
        self._compare_at_s = 0.0
        self._settled_comparisons = 0
        self._known_difference: tuple[wire.Holds, wire.Holds, bool] | None = None
        """The last difference that was examined. A difference may persist for long; it is examined only once."""
        self.settled: Callable[[], bool] = lambda: False
        """Returns True if the coordinator has announced which subscribers this broker serves.

        Until then the broker keeps all subscriptions that its earlier process held, because a subscriber may still need
        them.
        """
        self._tasks: set[asyncio.Task[None]] = set()
        self._result_client: httpx.AsyncClient
        self.fetches = ResultFetches(process.happened, lambda: self._result_client, self._headers)
        self._proofs = UserProofs(process, lambda: self._client)
        self._unproven: dict[BackendKey, int] = {}
        """Requests that wait for a proof of their user → failed attempts."""
        self._log = logger()
        self.announcements = AnnouncementStream(settings, self._headers, process.happened)

    def start(self) -> None:
        self._client = self._client_of(self._addresses)
        results = self._process.settings.results
        self._result_client = self._client if results is None else self._client_of(rotated(results, self._broker))
        self._in_background(self._place_orders())
        self._in_background(self.announcements.listen())

    def _client_of(self, addresses: str) -> httpx.AsyncClient:
        return leading_client(
            addresses,
            headers=self._headers(),
            timeout=_TIMEOUT,
            verify=self._tls or True,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=16),
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.fetches.stop()
        await self._client.aclose()
        await self._result_client.aclose()
        await self._proofs.close()

    def _in_background(self, work: Any) -> asyncio.Task[None]:
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
        """Send the orders in sequence: a subscription that is released and requested again must be held at the end."""
        failures = 0
        while True:
            if not self._orders:
                await self._idle()
                continue
            batch = self._next_batch()
            try:
                await self._place(batch)
                failures = 0
            except Exception as error:  # any error: if this loop ended, the broker could never subscribe again
                self._orders.extendleft(reversed(batch))
                failures += 1
                self._log.warning(
                    "the data cluster does not take subscriptions; retrying",
                    reason=reason_of(error),
                    in_a_row=failures,
                )
                await asyncio.sleep(jittered_s(failures))

    async def _idle(self) -> None:
        """Wait for orders. Run a comparison if it is due: no order is in progress here."""
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
        """Take orders of the same kind and channel that follow each other."""
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
        if asks:
            await self._subscribe(asks)
        else:
            await self._release(batch[0].channel, [order for order in batch if isinstance(order, ReleaseBackend)])

    async def _release(self, channel: ChannelName, orders: list[ReleaseBackend]) -> None:
        needed = self._process.core.state.backends
        released: list[str] = [order.subscription for order in orders if order.subscription not in needed]
        if released:
            # A refusal is ignored: a channel that was dropped has no subscriptions left.
            await self._post(wire.RELEASES, wire.ReleaseRequest(channel, released, self._broker))

    async def _subscribe(self, asks: list[RequestBackend]) -> None:
        sets, users = [ask.parameters for ask in asks], [ask.user for ask in asks]
        request = wire.SubscribeRequest(asks[0].channel, sets, self._broker, users)
        answer = await self._post(wire.SUBSCRIPTIONS, request)
        if _is_unproven(answer) and await self._proofs.prove(users):
            answer = await self._post(wire.SUBSCRIPTIONS, request)
        if answer.status_code == 200:
            for ask, granted in zip(asks, wire.decode_granted(answer.content), strict=True):
                cursor = wire.decode_cursor(granted.cursor)
                event = events.BackendGranted(ask.key, ask.channel, granted.id, cursor, granted.bound)
                self._process.happened(event)
                self._unproven.pop(ask.key, None)
            return
        error = error_of(answer)
        if len(asks) > 1 and error.code != Code.UNKNOWN_CHANNEL:
            for ask in asks:  # one set of values is wrong: the others must not fail with it
                await self._subscribe([ask])
            return
        for ask in asks:
            if error.code is Code.UNPROVEN_USER and self._unproven.get(ask.key, 0) < _MOST_PROOFS:
                self._ask_later(ask)
            else:
                self._unproven.pop(ask.key, None)
                self._process.happened(events.BackendRefused(ask.key, error.code, error.message))

    def _ask_later(self, ask: RequestBackend) -> None:
        """Repeat the request without delaying others: the coordinator may vouch for this user in a moment."""
        failures = self._unproven[ask.key] = self._unproven.get(ask.key, 0) + 1
        asyncio.get_running_loop().call_later(jittered_s(failures), self.ask, ask)

    # -- comparison ------------------------------------------------------------------------------------------------

    async def _compare(self) -> None:
        """Compare the subscriptions that the data cluster lists for this broker with those that the broker holds.

        Subscriptions that are missing there are requested again: they were released in this broker's name, or the data
        cluster restored an older state. Subscriptions of an earlier process of this broker that no subscriber needs are
        released.
        """
        backends = self._process.core.state.backends
        self._settled_comparisons = self._settled_comparisons + 1 if self.settled() else 0
        settled = self._settled_comparisons >= SETTLED
        try:
            there = wire.decode_holds((await self._get(wire.HOLDS.format(broker=self._broker))).content)
            held_ids = [identity for identity, backend in backends.items() if backend.held]
            here = wire.Holds(len(held_ids), fingerprint(held_ids))
            difference = (there, here, settled)
            if there == here:
                self._known_difference = None
            if there == here or difference == self._known_difference:
                return
            listed = await self._held_there()
        except (httpx.HTTPError, OSError, TocsinError, ValueError) as error:
            self._log.warning("cannot compare subscriptions with the data cluster", reason=reason_of(error))
            return
        if self._orders:
            return  # the lists changed meanwhile
        self._known_difference = difference
        missing = [identity for identity, backend in backends.items() if backend.held and identity not in listed]
        if missing:
            self._log.warning("the data cluster lost subscriptions; requesting them again", subscriptions=len(missing))
            self._process.happened(events.HoldsMissing(missing))
        if settled:
            for identity in listed.keys() - backends.keys():
                self.release(ReleaseBackend(listed[identity], identity))

    async def _held_there(self) -> dict[SubscriptionId, ChannelName]:
        listed: dict[SubscriptionId, ChannelName] = {}
        after: int | None = 0
        while after is not None:
            answer = await self._get(wire.SUBSCRIPTIONS, wire.page_query(self._broker, _PAGE, after))
            page = wire.decode_page(answer.content)
            listed |= {subscription.id: subscription.channel for subscription in page.subscriptions}
            after = page.next
        return listed

    async def _get(self, path: str, query: dict[str, str | int] | None = None) -> httpx.Response:
        answer = await self._client.get(path, params=query)
        if answer.status_code != 200:
            raise error_of(answer)
        return answer

    async def _post(self, path: str, body: object) -> httpx.Response:
        """Send a request and return the answer, even a refusal. Raises if a retry may succeed."""
        answer = await self._client.post(path, content=wire.encode(body))
        if answer.status_code >= 500 or (answer.status_code in _RETRIED_STATUSES and not _concerns_user(answer)):
            self._client.headers.update(self._headers())  # the token's file may hold a newer one by now
            raise error_of(answer)
        return answer

    # -- records of subscribers ------------------------------------------------------------------------------------

    def store(self, effect: StoreUpdates) -> None:
        self._in_background(self._store(effect))

    async def _store(self, effect: StoreUpdates) -> None:
        try:
            async with asyncio.timeout(self._process.settings.limits.request_s):
                refused = await self._post_records(effect)
        except Exception as error:  # any error: the dataset's next request waits for the end of this one
            self._process.happened(self._failed(effect, error))
        else:
            self._process.happened(events.UpdatesStored(effect.batch, refused))

    async def _post_records(self, effect: StoreUpdates) -> list[wire.RefusedRecord]:
        """Store the records and return the refused ones. Records of unproven users are sent again after the proof."""
        refused = await self._post_own_records(effect, effect.records)
        unproven = [refusal.index for refusal in refused if refusal.code == Code.UNPROVEN_USER]
        if unproven and await self._proofs.prove(effect.records[index][0] for index in unproven):
            again = await self._post_own_records(effect, [effect.records[index] for index in unproven])
            refused = [refusal for refusal in refused if refusal.code != Code.UNPROVEN_USER]
            refused += [wire.RefusedRecord(unproven[other.index], other.code, other.message) for other in again]
        return refused

    async def _post_own_records(
        self, effect: StoreUpdates, records: list[tuple[SubscriberId, bytes]]
    ) -> list[wire.RefusedRecord]:
        path = wire.OWN_RECORDS.format(name=effect.dataset)
        answer = await self._client.post(
            path, content=wire.encode_own_records(records), params={"broker": self._broker}
        )
        if answer.status_code != 200:
            self._client.headers.update(self._headers())
            raise error_of(answer)
        return wire.decode_own_answer(answer.content).refused

    def _failed(self, effect: StoreUpdates, error: Exception) -> events.UpdatesFailed:
        """The event for subscribers. They do not learn about problems between this broker and the data cluster."""
        if isinstance(error, TocsinError) and (error.code is Code.BACKLOGGED or error.code in _SUBSCRIBERS_OWN):
            return events.UpdatesFailed(effect.batch, error.code, error.message, error.retry_after_s)
        self._log.warning("cannot store updates", dataset=effect.dataset, reason=reason_of(error))
        message = "the data cluster does not store updates at the moment; try again"
        return events.UpdatesFailed(effect.batch, Code.NOT_READY, message)


def _concerns_user(answer: httpx.Response) -> bool:
    """True if the data cluster refuses the user that a request names. The broker's own token is valid then."""
    return answer.status_code == 403 and error_of(answer).code in (Code.FOREIGN_USER, Code.UNPROVEN_USER)


def _is_unproven(answer: httpx.Response) -> bool:
    return answer.status_code == 403 and error_of(answer).code is Code.UNPROVEN_USER
