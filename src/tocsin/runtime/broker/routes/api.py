"""What every route of a broker has at hand, and who is calling."""

from __future__ import annotations

from typing import Any, cast

from starlette.requests import HTTPConnection

from tocsin.model.ids import SubscriberId
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.runtime.broker.metrics import BrokerMetrics
from tocsin.runtime.broker.webhooks import WebhookSessions
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError


class BrokerApi:
    def __init__(self, gate: ConnectionGuard, metrics: BrokerMetrics, webhooks: WebhookSessions) -> None:
        self.gate = gate
        self.process = gate.process
        self.settings = gate.process.settings
        self.metrics = metrics
        self.webhooks = webhooks
        self.stopping = False


def api_of(connection: HTTPConnection) -> BrokerApi:
    return cast("BrokerApi", connection.app.state.api)


def claims_of(connection: HTTPConnection) -> Claims:
    """Whom the door let in."""
    return cast("Claims", connection.scope["tocsin.claims"])


def subscriber_calling(connection: HTTPConnection) -> SubscriberId:
    return SubscriberId(claims_of(connection).subject)


async def asked(connection: HTTPConnection, request: wire.FromSubscriber) -> Any:
    """The answer to a request, as over a connection; raises if it was refused."""
    answer = await api_of(connection).process.call(subscriber_calling(connection), request)
    if isinstance(answer, wire.Refused):
        raise TocsinError(Code(answer.code), answer.message, retry_after_s=answer.retry_after_s)
    return answer
