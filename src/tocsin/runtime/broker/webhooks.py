"""Webhooks: one signed POST per result, in order, repeated until the receiver accepts it (Standard Webhooks).

A webhook is a session whose connection takes one result at a time; cursors, catch-up and the cache work as for any
other session. When the receiver has answered 2xx, the session acknowledges the result's cursor and sends the next one.
`webhook-id` consists of subscription and cursor, so the receiver recognises a repeat, even from another broker.
Before a URL is called, its owner consents in a handshake (CloudEvents Web Hooks §4): otherwise subscribers could direct
the broker's calls at any server. `webhook_calls` makes the calls.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import random
from collections import deque

import msgspec

from tocsin.broker.effects import CallWebhook
from tocsin.broker.events import LoginRequested, RequestReceived, SessionBlocked, SessionDrained, WebhookChangeRequested
from tocsin.broker.hosted import Requester, SessionId
from tocsin.broker.message_encoding import Encoding, result_json
from tocsin.broker.result_batch import Batch
from tocsin.model.cursor import Cursor
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.runtime.broker.metrics import BrokerMetrics
from tocsin.runtime.broker.process import BrokerProcess
from tocsin.runtime.broker.webhook_addresses import check_url, endpoint_of
from tocsin.runtime.broker.webhook_calls import CallAnswer, CallFailed, WebhookCaller
from tocsin.runtime.http.logs import logger
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.link import Webhook

SCHEDULE_S = (0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Pauses before the attempts, as Standard Webhooks recommends; jitter makes each up to a tenth longer."""
SECRET_PREFIX = "whsec_"
_encode = msgspec.json.Encoder().encode
_jitter = random.Random()


def signature(secret: str, identity: str, timestamp: int, body: bytes) -> str:
    """`v1,<base64 HMAC-SHA256>` over id, timestamp and body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.new(key, f"{identity}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def is_secret(text: str) -> bool:
    """True if the text is `whsec_` and 24 to 64 bytes in base64."""
    if not text.startswith(SECRET_PREFIX):
        return False
    try:
        return 24 <= len(base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)) <= 64
    except ValueError:
        return False


class WebhookSession:
    """The session of one subscriber's webhook."""

    claims = None
    """A webhook needs no token: the subscriber's token permitted its subscriptions when they were made."""

    def __init__(self, sessions: WebhookSessions, subscriber: SubscriberId, webhook: Webhook) -> None:
        self._sessions = sessions
        self._process = sessions.process
        self._subscriber = subscriber
        self._webhook = webhook
        self._queue: deque[tuple[str, bytes, SubscriptionId, Cursor]] = deque()
        self._queued = asyncio.Event()
        self.session: SessionId = self._process.new_session(self)
        self.task = asyncio.create_task(self._run())

    # -- called by the process -------------------------------------------------------------------------------------

    def send_results(self, batch: Batch, data: bytes) -> None:
        for cursor, row in zip(batch.cursors(), batch.rows, strict=True):
            content = result_json(batch.subscription, batch.channel, cursor, row)
            self._add(f"{batch.subscription}/{cursor}", "tocsin.result", content, batch.subscription, cursor)

    def send_message(self, message: wire.ToSubscriber, data: bytes) -> None:
        if isinstance(message, wire.Gap):
            cursor = Cursor.parse(message.cursor)
            assert cursor is not None
            name = f"{message.subscription}/gap/{cursor}"
            self._add(name, "tocsin.gap", _encode(message), message.subscription, cursor)

    def _add(self, name: str, kind: str, content: bytes, subscription: SubscriptionId, cursor: Cursor) -> None:
        body = b'{"type":"%b","data":%b}' % (kind.encode(), content)
        self._queue.append((name, body, subscription, cursor))
        self._queued.set()
        self._process.happened(SessionBlocked(self.session))

    def await_drain(self) -> None:
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._process.happened, SessionDrained(self.session))

    def close(self, reason: str) -> None:
        self._sessions.ended(self._subscriber, self)
        self.task.cancel()

    # -- the receiver ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        reason = "webhook ended"
        try:
            while True:
                while self._queue:
                    name, body, subscription, cursor = self._queue[0]
                    if not await self._deliver(name, body):
                        reason = "webhook failed"
                        return
                    self._queue.popleft()
                    ack = wire.Ack(0, {subscription: str(cursor)})
                    self._process.happened(RequestReceived(Requester(session=self.session), self._subscriber, ack))
                self._queued.clear()
                self._process.happened(SessionDrained(self.session))
                if not self._queue:
                    await self._queued.wait()
        finally:
            self._sessions.ended(self._subscriber, self)
            self._process.session_lost(self.session, reason)

    async def _deliver(self, name: str, body: bytes) -> bool:
        """Post until the receiver accepts; False after a 410 or the last attempt."""
        wait_s: float | None = None
        for attempt, pause_s in enumerate(SCHEDULE_S):
            await asyncio.sleep(pause_s * _jitter.uniform(1.0, 1.1) if wait_s is None else wait_s)
            wait_s = None
            try:
                answer = await self._sessions.post(self._webhook, name, body)
            except CallFailed as error:
                self._sessions.count("failed")
                self._log_failure(attempt, str(error))
                continue
            if answer.is_success:
                self._sessions.count("delivered")
                return True
            self._sessions.count("refused")
            self._log_failure(attempt, str(answer.status))
            if answer.status == 410:
                self._process.happened(WebhookChangeRequested(Requester(), self._subscriber, None))
                return False
            if answer.status == 429:
                wait_s = answer.retry_after_s
        return False

    def _log_failure(self, attempt: int, reason: str) -> None:
        logger().warning("a webhook call failed", reason=reason, attempt=attempt + 1)


class WebhookSessions:
    """All webhook sessions of this broker. The core calls `begin` when a subscriber with a webhook has no session."""

    def __init__(self, process: BrokerProcess, metrics: BrokerMetrics) -> None:
        self.process = process
        self._metrics = metrics
        self._sessions: dict[SubscriberId, WebhookSession] = {}
        self._proving: set[SubscriberId] = set()
        """Subscribers whose handshake is in progress."""
        self.caller = WebhookCaller(private=process.settings.webhooks_private)

    def begin(self, effect: CallWebhook) -> None:
        subscriber = effect.subscriber
        if not self.process.settings.webhooks or subscriber in self._sessions:
            return
        session = self._sessions[subscriber] = WebhookSession(self, subscriber, effect.webhook)
        requester = Requester(session=session.session)
        self.process.happened(LoginRequested(requester, subscriber, 0, encoding=Encoding.PLAIN, is_webhook=True))

    def ended(self, subscriber: SubscriberId, session: WebhookSession) -> None:
        if self._sessions.get(subscriber) is session:
            del self._sessions[subscriber]

    def forget(self, subscriber: SubscriberId) -> None:
        """End the session at once, even during a call, because the webhook's URL changes."""
        session = self._sessions.pop(subscriber, None)
        if session is not None:
            session.task.cancel()

    def count(self, outcome: str) -> None:
        self._metrics.webhook_calls.labels(outcome).inc()

    async def check(self, subscriber: SubscriberId, webhook: Webhook) -> None:
        """Raise unless the URL is acceptable and its owner consents to calls for this subscriber."""
        settings = self.process.settings
        check_url(webhook.url, private=settings.webhooks_private)
        await self.caller.addresses(*endpoint_of(webhook.url))
        if not settings.webhook_handshake:
            return
        if subscriber in self._proving:
            raise TocsinError(Code.BACKLOGGED, "the previous handshake is still in progress", retry_after_s=5)
        self._proving.add(subscriber)
        try:
            await self._shake_hands(webhook)
        finally:
            self._proving.discard(subscriber)

    async def _shake_hands(self, webhook: Webhook) -> None:
        """Ask the endpoint's owner for consent. The signature lets an owner with the secret recognise the sender."""
        origin = self.process.settings.webhook_origin
        headers = self._signed(webhook, "handshake", b"") | {"webhook-request-origin": origin}
        try:
            answer = await self.caller.call("OPTIONS", webhook.url, headers)
        except CallFailed as error:
            raise TocsinError(Code.FORBIDDEN, f"url: the handshake failed: {error}") from None
        allowed = answer.headers.get("webhook-allowed-origin", "").strip()
        if not answer.is_success or allowed not in ("*", origin):
            message = f"url: its owner must answer OPTIONS with 200 and the header WebHook-Allowed-Origin: {origin}"
            raise TocsinError(Code.FORBIDDEN, f"{message}; it answered {answer.status}")

    async def post(self, webhook: Webhook, name: str, body: bytes) -> CallAnswer:
        headers = self._signed(webhook, name, body) | {"content-type": "application/json"}
        return await self.caller.call("POST", webhook.url, headers, body)

    def _signed(self, webhook: Webhook, name: str, body: bytes) -> dict[str, str]:
        timestamp = int(self.process.now_s())
        return {
            "webhook-id": name,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(signature(secret, name, timestamp, body) for secret in webhook.secrets),
        }

    async def stop(self) -> None:
        tasks = [session.task for session in self._sessions.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.caller.stop()
