"""The objects that every route of a broker uses, and the caller of a request."""

from __future__ import annotations

from typing import Any, cast

from starlette.requests import HTTPConnection

from tocsin.model.ids import SubscriberId
from tocsin.runtime.broker.connection_guard import ConnectionGuard, subscriber_of
from tocsin.runtime.broker.metrics import BrokerMetrics
from tocsin.runtime.broker.webhooks import WebhookSessions
from tocsin.runtime.http.audit import CLAIMS
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError


class BrokerContext:
    def __init__(self, guard: ConnectionGuard, metrics: BrokerMetrics, webhooks: WebhookSessions) -> None:
        self.guard = guard
        self.process = guard.process
        self.settings = guard.process.settings
        self.metrics = metrics
        self.webhooks = webhooks
        self.stopping = False


def context_of(connection: HTTPConnection) -> BrokerContext:
    return cast("BrokerContext", connection.app.state.context)


def claims_of(connection: HTTPConnection) -> Claims:
    """The claims of the token that `authentication` has checked."""
    return cast("Claims", connection.scope[CLAIMS])


def caller_of(connection: HTTPConnection) -> SubscriberId:
    return subscriber_of(claims_of(connection))


async def call(connection: HTTPConnection, request: wire.FromSubscriber) -> Any:
    """Pass a request to the broker core and return the answer; raise if the core refuses it."""
    answer = await context_of(connection).process.call(caller_of(connection), request, claims_of(connection).rights)
    raise_if_refused(answer)
    return answer


def raise_if_refused(answer: wire.ToSubscriber) -> None:
    if isinstance(answer, wire.Refused):
        raise TocsinError(Code(answer.code), answer.message, retry_after_s=answer.retry_after_s)
