"""Webhooks: one signed POST per result, in order, repeated until the receiver accepts it (Standard Webhooks).

A webhook is a session whose connection takes one result at a time; cursors, catch-up and the cache work as for any
other session. When the receiver has answered 2xx, the session acknowledges the result's cursor and sends the next one.
`webhook-id` consists of subscription and cursor, so the receiver recognises a repeat, even from another broker.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import random
import socket
from collections import deque
from urllib.parse import urlsplit

import httpx
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
from tocsin.runtime.http.logs import logger
from tocsin.wire import session as wire
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.link import Webhook

SCHEDULE_S = (0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Pauses before the attempts, as Standard Webhooks recommends; jitter makes each up to a tenth longer."""
LONGEST_WAIT_S = 86_400.0
TIMEOUT_S = 20.0
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


def check_url(url: str, *, private: bool) -> None:
    """Raise if the URL is unacceptable, without resolving its host name."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise TocsinError(Code.BAD_REQUEST, "url: not an address") from None
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise TocsinError(Code.BAD_REQUEST, "url: webhooks are called over https")
    if not host or parts.username or parts.password or len(url) > 2_048 or not url.isascii() or not url.isprintable():
        raise TocsinError(Code.BAD_REQUEST, "url: expected https://host/path, without a password in it")


async def addresses_of(url: str, *, private: bool) -> list[str]:
    """Resolve the URL's host; raise if it has a private address, so that no subscriber can reach internal services."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise TocsinError(Code.BAD_REQUEST, f"url: there is no host {parts.hostname}") from None
    addresses = [str(entry[4][0]) for entry in entries]
    if not private and not all(ipaddress.ip_address(text.partition("%")[0]).is_global for text in addresses):
        raise TocsinError(Code.FORBIDDEN, f"url: {parts.hostname} is not on the public network")
    return addresses


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
            except (httpx.HTTPError, TocsinError, OSError) as error:
                self._sessions.count("failed")
                self._log_failure(attempt, type(error).__name__)
                continue
            if answer.status_code // 100 == 2:
                self._sessions.count("delivered")
                return True
            self._sessions.count("refused")
            self._log_failure(attempt, str(answer.status_code))
            if answer.status_code == 410:
                self._process.happened(WebhookChangeRequested(Requester(), self._subscriber, None))
                return False
            if answer.status_code == 429:
                wait_s = retry_after_s(answer)
        return False

    def _log_failure(self, attempt: int, reason: str) -> None:
        logger().warning("a webhook call failed", reason=reason, attempt=attempt + 1)


def retry_after_s(answer: httpx.Response) -> float | None:
    text = answer.headers.get("retry-after", "")
    return min(LONGEST_WAIT_S, float(text)) if text.isascii() and text.isdigit() else None


class WebhookSessions:
    """All webhook sessions of this broker. The core calls `begin` when a subscriber with a webhook has no session."""

    def __init__(self, process: BrokerProcess, metrics: BrokerMetrics) -> None:
        self.process = process
        self._metrics = metrics
        self._private = process.settings.webhooks_private
        self._sessions: dict[SubscriberId, WebhookSession] = {}
        self._client = httpx.AsyncClient(
            timeout=TIMEOUT_S, follow_redirects=False, trust_env=False, headers={"User-Agent": "tocsin"}
        )

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

    async def post(self, webhook: Webhook, name: str, body: bytes) -> httpx.Response:
        """Post to the checked IP address: a second DNS lookup could return a private one."""
        timestamp = int(self.process.now_s())
        headers = {
            "content-type": "application/json",
            "webhook-id": name,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(signature(secret, name, timestamp, body) for secret in webhook.secrets),
        }
        [address, *_] = await addresses_of(webhook.url, private=self._private)
        url = httpx.URL(webhook.url)
        headers["host"] = url.netloc.decode()
        request = self._client.build_request("POST", url.copy_with(host=address), headers=headers, content=body)
        request.extensions["sni_hostname"] = url.host
        return await self._client.send(request)

    async def stop(self) -> None:
        tasks = [session.task for session in self._sessions.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()
