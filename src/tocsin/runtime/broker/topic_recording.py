"""Sends the messages of recorded topics to the data cluster, with the coordinator's grant for each dataset.

One attempt per request: the topics core decides when to repeat it. A refused message is logged, at most once a minute
for each dataset.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx
import msgspec

from tocsin.broker.topics import effects, events
from tocsin.leaders.clients import leading_client
from tocsin.model.ids import DatasetName, TopicName
from tocsin.runtime.broker.connecting import reason_of, tls_context
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.http.logs import logger
from tocsin.wire import recording as wire
from tocsin.wire.errors import Code, TocsinError, error_from

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_GRANT_S = 300.0
"""How long a grant is used; it is valid for longer."""
_STOP_S = 3.0
"""How long a stopping broker waits for the answers to its last messages."""
_LOG_S = 60.0
_AT_FAULT = frozenset({Code.TOO_LARGE, Code.BAD_RECORDS})
"""Refusals that a message of the batch has caused. After any other one the whole batch is sent again."""
Request = effects.StoreRecords | effects.AskRecorded


class TopicRecording:
    def __init__(self, settings: BrokerSettings, report: Callable[[events.Event], None]) -> None:
        self._settings = settings
        self._report = report
        self._clients: dict[str, httpx.AsyncClient] = {}
        """One for the data cluster, one for the coordinator."""
        """Made for the first request and kept: a new client costs more than the request."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._grants: dict[tuple[TopicName, DatasetName], tuple[str, float]] = {}
        """(topic, dataset) → (token, until when it is used)."""
        self._logged_s: dict[DatasetName, float] = {}
        self._log = logger()

    def perform(self, effect: Request) -> None:
        task = asyncio.create_task(self._perform(effect))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_STOP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.aclose()

    async def _perform(self, effect: Request) -> None:
        try:
            event = await self._send(effect)
        except TocsinError as error:
            event = self._failed(effect, error)
        except (httpx.HTTPError, OSError, msgspec.MsgspecError) as error:
            event = self._failed(effect, TocsinError(Code.NOT_READY, reason_of(error)))
        self._report(event)

    def _failed(self, effect: Request, error: TocsinError) -> events.Event:
        if error.code in (Code.FORBIDDEN, Code.UNAUTHENTICATED):
            self._grants.pop((effect.topic, effect.plan.dataset), None)
        if error.code in _AT_FAULT and isinstance(effect, effects.StoreRecords):
            self._note_refused(effect, 1, error.message)
            return events.RecordsRefused(effect.recorder, error.message)
        if error.code is Code.IDEMPOTENCY_CONFLICT:  # stored before; the dataset has got other columns since
            return events.RecordsStored(effect.recorder)
        self._log_sometimes(effect, "cannot record a topic; retrying", reason=error.message)
        return events.RecordsFailed(effect.recorder, error.message, error.retry_after_s)

    async def _send(self, effect: Request) -> events.Event:
        body = wire.TopicRecords(effect.plan.recording, effect.topic, await self._grant(effect))
        if isinstance(effect, effects.StoreRecords):
            body.messages, body.key = effect.messages, effect.key
            body.after, body.upto = effect.after, effect.upto
        settings, path = self._settings, wire.TOPIC_RECORDS.format(name=effect.plan.dataset)
        content = await self._post(settings.cluster, path, wire.encode(body), settings.secret("cluster"))
        answer = wire.decode_answer(content)
        if isinstance(effect, effects.AskRecorded) or answer.upto != effect.upto:
            return events.RecordedUpto(effect.recorder, answer.upto or 0)
        if answer.refused:
            self._note_refused(effect, answer.refused, answer.reason or "")
        return events.RecordsStored(effect.recorder, answer.refused)

    async def _grant(self, effect: Request) -> str:
        """The coordinator's grant for this topic and dataset."""
        settings, now_s = self._settings, time.monotonic()
        token, until_s = self._grants.get((effect.topic, effect.plan.dataset), ("", 0.0))
        if now_s < until_s or settings.coordinator is None:
            return token
        path = wire.RECORDING_TOKENS.format(broker=settings.id)
        body = msgspec.json.encode(wire.RecordingTokenRequest(effect.topic))
        content = await self._post(settings.coordinator, path, body, settings.secret("coordinator"))
        granted = msgspec.json.decode(content, type=wire.RecordingToken)
        self._grants[effect.topic, granted.dataset] = (granted.token, now_s + _GRANT_S)
        return granted.token

    async def _post(self, addresses: str, path: str, body: bytes, token: str | None) -> bytes:
        client = self._clients.get(addresses)
        if client is None:
            tls = tls_context(addresses, self._settings.ca)
            client = self._clients[addresses] = leading_client(addresses, timeout=_TIMEOUT, verify=tls or True)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = await client.post(path, content=body, headers=headers)
        if answer.status_code != httpx.codes.OK:
            raise error_from(
                answer.status_code,
                answer.content,
                retry_after=answer.headers.get("retry-after", ""),
                fallback=Code.NOT_READY,
                message=answer.reason_phrase,
            )
        return answer.content

    def _note_refused(self, effect: effects.StoreRecords, count: int, reason: str) -> None:
        self._log_sometimes(effect, "messages do not fit the dataset and are not recorded", count=count, reason=reason)

    def _log_sometimes(self, effect: Request, message: str, **more: object) -> None:
        now_s, dataset = time.monotonic(), effect.plan.dataset
        if now_s - self._logged_s.get(dataset, float("-inf")) >= _LOG_S:
            self._logged_s[dataset] = now_s
            self._log.warning(message, topic=effect.topic, dataset=dataset, **more)
