"""Preparations: the work of this broker as the target of a migration, before the subscriber arrives [BAD §3.3].

The target holds the subscriptions and has the results in its cache before the source sends the subscriber away
(make-before-break). A preparation has a deadline after which it is undone, so a coordinator that dies half-way leaves
nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tocsin.broker.backend_subscriptions import BackendSubscriptions, SubscriptionRequest
from tocsin.broker.backfill import Backfills
from tocsin.broker.hosted import BackendSubscription, FrontendSubscription
from tocsin.broker.live_fetches import LiveFetches
from tocsin.broker.requests import SubscriberRequests
from tocsin.broker.sessions import parse_cursor
from tocsin.broker.state import BrokerState
from tocsin.model.ids import SubscriberId
from tocsin.wire import link
from tocsin.wire.errors import Code


@dataclass(slots=True)
class Preparation:
    subscriber: SubscriberId
    until_s: float
    webhook: link.Webhook | None
    requested: list[link.Frontend]
    """Subscriptions that this broker did not hold when the preparation began."""
    missing: int
    """Requested subscriptions that the data cluster has not granted yet."""
    created: list[FrontendSubscription] = field(default_factory=list)
    """Subscriptions to release if the subscriber does not arrive."""
    reported: bool = False


class Preparations:
    def __init__(
        self,
        state: BrokerState,
        backends: BackendSubscriptions,
        requests: SubscriberRequests,
        fetches: LiveFetches,
        backfill: Backfills,
    ) -> None:
        self._state = state
        self._backends = backends
        self._requests = requests
        self._fetches = fetches
        self._backfills = backfill
        self._preparations: dict[str, Preparation] = {}

    @property
    def idle(self) -> bool:
        return not self._preparations

    def begin(
        self, message: link.Prepare, missing: list[link.Frontend], created: Sequence[FrontendSubscription]
    ) -> None:
        """Request the `missing` subscriptions. `created` are those of an earlier preparation of the same migration."""
        name = message.state.subscriber
        subscriber = self._state.subscribers.get(name)
        frontends = {} if subscriber is None else subscriber.frontends
        kept = [frontend for frontend in created if frontends.get(frontend.backend.id) is frontend]
        until_s = self._state.now_s + message.deadline_s
        self._preparations[message.migration] = Preparation(
            name, until_s, message.state.webhook, missing, len(missing), kept
        )
        for entry in missing:
            cursor, now_s = parse_cursor(entry.cursor), self._state.now_s
            request = SubscriptionRequest(name, entry.parameters, cursor, now_s, migration=message.migration)
            self._backends.request(entry.channel, request)

    def cancel(self, migration: str, name: SubscriberId) -> list[FrontendSubscription]:
        """End a preparation without releasing its subscriptions, and return them."""
        self._backends.withdraw(name, migration)
        preparation = self._preparations.pop(migration, None)
        return [] if preparation is None else preparation.created

    def on_granted(self, request: SubscriptionRequest, frontend: FrontendSubscription) -> None:
        preparation = self._preparations.get(request.migration or "")
        if preparation is not None:
            preparation.missing -= 1
            preparation.created.append(frontend)
            self._backfills.prepare(frontend.backend, request.after or frontend.acked)

    def on_refused(self, request: SubscriptionRequest, code: str, message: str) -> None:
        migration = request.migration or ""
        if migration in self._preparations and code == Code.FOREIGN_USER:
            self._preparations[migration].missing -= 1  # no broker may serve it: it must not keep the subscriber here
        elif migration in self._preparations:
            self.undo(migration)
            self._state.send_to_coordinator(link.PrepareFailed(migration, code, message))

    def report_ready(self) -> None:
        """Report each preparation whose subscriptions are all granted and caught up."""
        for migration, preparation in self._preparations.items():
            if (
                not preparation.reported
                and preparation.missing == 0
                and all(self._is_ready(frontend.backend) for frontend in preparation.created)
            ):
                preparation.reported = True
                self._state.send_to_coordinator(link.Prepared(migration))

    def _is_ready(self, backend: BackendSubscription) -> bool:
        return self._fetches.is_current(backend) and self._backfills.prepared(backend)

    def undo(self, migration: str) -> None:
        """Release the prepared subscriptions, unless the subscriber has a session here."""
        preparation = self._preparations.pop(migration, None)
        if preparation is None:
            return
        self._backends.withdraw(preparation.subscriber, migration)
        subscriber = self._state.subscribers.get(preparation.subscriber)
        if subscriber is None or subscriber.session is not None:
            return
        for frontend in preparation.created:
            if subscriber.frontends.get(frontend.backend.id) is frontend:
                self._requests.release(subscriber, frontend)
        self._state.forget_if_empty(subscriber)

    def end_for(self, name: SubscriberId) -> list[Preparation]:
        """End a subscriber's preparations without undoing them: this broker now serves it, or must not serve it."""
        ended = [item for item in self._preparations.items() if item[1].subscriber == name]
        for migration, _ in ended:
            self.cancel(migration, name)
        return [preparation for _, preparation in ended]

    def on_link_lost(self) -> None:
        """Undo preparations for subscribers without a granted subscription.

        This broker will not list such a subscriber when it registers, so the coordinator would never release it.
        """
        for migration, preparation in list(self._preparations.items()):
            if preparation.subscriber not in self._state.subscribers:
                self.undo(migration)

    def expire(self) -> None:
        for migration, preparation in list(self._preparations.items()):
            if preparation.until_s <= self._state.now_s:
                self.undo(migration)
                if not preparation.reported:
                    message = "the subscriptions were not caught up before the deadline"
                    self._state.send_to_coordinator(link.PrepareFailed(migration, Code.NOT_READY, message))
