"""Publisher and subscriber for programs without asyncio. Each runs the asyncio object on a loop in its own thread.

    with sync.Subscriber("http://127.0.0.1:8570", user="ann", token=token) as subscriber:
        for result in subscriber.subscribe("EmergenciesOfType", {"kind": "fire"}):
            print(result.value)

Methods block. Several threads may call them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tocsin.client import publisher as publishing
from tocsin.client import subscriber as subscribing
from tocsin.client.errors import SessionEnded, SubscriptionEnded
from tocsin.client.notifications import Gap, Notification, Result
from tocsin.client.publisher import Published, Record
from tocsin.model.ids import BrokerId, SubscriptionId

T = TypeVar("T")


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Wait for the work's result. An interrupt (Ctrl-C) of the waiting thread cancels the work."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _create(kind: type[T], *arguments: Any, **options: Any) -> T:
    """Create an object on the loop's thread, because publisher and subscriber bind to the running loop."""
    return kind(*arguments, **options)


class Publisher:
    """See `client.publisher.Publisher`."""

    def __init__(self, cluster: str, token: str | None = None, **options: Any) -> None:
        self._loop = _Loop("tocsin-publisher")
        self._publisher = self._loop.run(_create(publishing.Publisher, cluster, token, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def publish(self, dataset: str, records: Iterable[Record]) -> Published:
        return self._loop.run(self._publisher.publish(dataset, records))

    def publish_lines(self, dataset: str, lines: list[bytes], key: str | None = None) -> Published:
        return self._loop.run(self._publisher.publish_lines(dataset, lines, key))

    def publish_cap(self, dataset: str, alert: bytes | str, key: str | None = None) -> Published:
        return self._loop.run(self._publisher.publish_cap(dataset, alert, key))

    def close(self) -> None:
        self._loop.run(self._publisher.close())
        self._loop.stop()


class Subscriber:
    """See `client.subscriber.Subscriber`."""

    def __init__(self, coordinator: str, **options: Any) -> None:
        self._coordinator = coordinator
        self._options = options

    def __enter__(self) -> Self:
        self._loop = _Loop("tocsin-subscriber")
        try:
            self._subscriber = self._loop.run(_create(subscribing.Subscriber, self._coordinator, **self._options))
            self._loop.run(self._subscriber.__aenter__())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._loop.run(self._subscriber.__aexit__(kind, error, trace))
        finally:
            self._loop.stop()

    def subscribe(
        self,
        channel: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        type: Any = dict[str, Any],
        after: str | None = None,
    ) -> Subscription[Any]:
        held = self._loop.run(self._subscriber.subscribe(channel, parameters, type=type, after=after))
        return Subscription(self._loop, held)

    def connected(self) -> BrokerId:
        return self._loop.run(self._subscriber.connected())

    def unsubscribe(self, subscription: SubscriptionId) -> None:
        self._loop.run(self._subscriber.unsubscribe(subscription))

    def update(self, dataset: str, record: Mapping[str, Any]) -> None:
        self._loop.run(self._subscriber.update(dataset, record))

    def ack(self, notification: Result[Any] | Gap) -> None:
        async def on_the_loop() -> None:
            self._subscriber.ack(notification)

        self._loop.run(on_the_loop())

    def get(self, timeout_s: float | None = None) -> Notification[Any]:
        """The next notification. Raises TimeoutError if none arrives in time."""
        return self._loop.run(self._subscriber.__anext__(), timeout_s)

    def __iter__(self) -> Iterator[Notification[Any]]:
        try:
            while True:
                yield self.get()
        except SessionEnded:
            return


class Subscription(Generic[T]):
    def __init__(self, loop: _Loop, subscription: subscribing.Subscription[T]) -> None:
        self._loop = loop
        self._subscription = subscription
        self.id = subscription.id
        self.channel = subscription.channel
        self.parameters = subscription.parameters

    def get(self, timeout_s: float | None = None) -> Result[T]:
        """The next result. Raises TimeoutError if none arrives in time."""
        return self._loop.run(self._subscription.__anext__(), timeout_s)

    def __iter__(self) -> Iterator[Result[T]]:
        try:
            while True:
                yield self.get()
        except (SessionEnded, SubscriptionEnded):
            return

    def unsubscribe(self) -> None:
        self._loop.run(self._subscription.unsubscribe())
