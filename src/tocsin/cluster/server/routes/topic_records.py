"""Records of topics: `POST /v1/datasets/{name}/topic-records`, sent by the home of a topic that is recorded here.

A message is a JSON object, one record, or an array of them. The columns `topic` and `position`, if the dataset has
them as STRING, get the name of the topic and the message's position there: a message cannot choose them. A message that
is no record does not stop the others: it is counted in the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from fastapi import APIRouter, Request, Response

from tocsin.cluster.feed.gateway import Accepted, Backlogged, CursorConflict, RecordedRange, RecordForm, Unavailable
from tocsin.cluster.server.routes.authentication import caller_of, require_trusted_broker
from tocsin.cluster.server.routes.context import ClusterContext, context_of
from tocsin.cluster.server.routes.records import REFUSAL_CODES, commit_records
from tocsin.model.entities import Dataset
from tocsin.model.permission import permits
from tocsin.runtime.http.answers import encode, read_body
from tocsin.runtime.http.credentials import CLUSTER
from tocsin.wire.errors import Code, TocsinError
from tocsin.wire.recording import TOPIC_RECORDS, TopicRecords, TopicRecordsAnswer

router = APIRouter(tags=["records"])

MOST_RECORDING_CHARACTERS = 64
Columns = dict[str, msgspec.Raw]
_decode = msgspec.msgpack.Decoder(TopicRecords).decode
_decode_message = msgspec.json.Decoder(Columns | list[Columns]).decode


@router.post(TOPIC_RECORDS, response_class=Response)
async def store_topic_records(request: Request, name: str) -> Response:
    """Store messages of a topic, in MessagePack (`TopicRecords`). For brokers; the body has the coordinator's grant."""
    context = require_trusted_broker(request)
    limit_bytes = context.commit_of(name).gateway.limits.body_bytes
    with context.room_for_records(caller_of(request).id) as take_room:
        try:
            sent = _decode(await read_body(request, limit_bytes, take_room))
        except msgspec.DecodeError as error:
            raise TocsinError(Code.BAD_REQUEST, f"the body is not a MessagePack `TopicRecords`: {error}") from None
        await _require_grant(request, name, sent.grant)
        reply = await _store(context, name, sent)
    return Response(msgspec.msgpack.encode(reply), media_type="application/msgpack")


async def _require_grant(request: Request, dataset: str, grant: str) -> None:
    """Raise unless the caller may publish to the dataset, or the coordinator granted this broker to record there."""
    caller, context = caller_of(request), context_of(request)
    if caller.may_publish(dataset):
        return
    claims = None
    if context.keys is not None:
        claims = await context.keys.claims(grant, context.cluster.now_s(), audience=CLUSTER)
    if claims is None or not caller.may_be(claims.subject) or not permits(claims.scopes, "publish", dataset):
        raise TocsinError(Code.FORBIDDEN, f"the coordinator has not granted this broker to record into {dataset}")


async def _store(context: ClusterContext, name: str, sent: TopicRecords) -> TopicRecordsAnswer:
    if not 1 <= len(sent.recording) <= MOST_RECORDING_CHARACTERS:
        raise TocsinError(Code.BAD_REQUEST, f"a recording has 1 to {MOST_RECORDING_CHARACTERS} characters")
    gateway = context.commit_of(name).gateway
    if sent.key is None and (sent.after is None or sent.upto is None):
        upto = await asyncio.to_thread(gateway.recorded_upto, sent.recording)
        if isinstance(upto, Unavailable):
            raise TocsinError(Code.NOT_READY, upto.reason, retry_after_s=upto.retry_after_s)
        context.process.leading.require()
        return TopicRecordsAnswer(upto)
    recorded = None
    if sent.after is not None and sent.upto is not None:
        if sent.upto < sent.after:
            raise TocsinError(Code.BAD_REQUEST, "`upto` is behind `after`")
        recorded = RecordedRange(sent.recording, sent.after, sent.upto)
    records, refused, reason = records_of(sent, gateway.dataset)
    body = encode(records)
    outcome = await commit_records(context, name, body, RecordForm.JSON, sent.key, recorded)
    if isinstance(outcome, CursorConflict):
        return TopicRecordsAnswer(outcome.upto)
    if not isinstance(outcome, Accepted):
        retry_after_s = outcome.retry_after_s if isinstance(outcome, Backlogged | Unavailable) else None
        raise TocsinError(REFUSAL_CODES[type(outcome)], outcome.reason, retry_after_s=retry_after_s)
    if reason is None and outcome.refused:
        first = outcome.refused[0]
        reason = first.reason if first.field is None else f"{first.field}: {first.reason}"
    return TopicRecordsAnswer(sent.upto, outcome.accepted, refused + outcome.refused_total, reason)


def records_of(sent: TopicRecords, dataset: Dataset) -> tuple[list[Columns], int, str | None]:
    """(records, number of messages that are none, the reason of the first such message)."""
    records: list[Columns] = []
    refused, reason = 0, None
    topic = msgspec.Raw(encode(sent.topic))
    filled = {
        column.name: column.name.lower()
        for column in dataset.schema.columns
        if column.name.lower() in ("topic", "position") and column.type == "STRING"
    }
    for position, data in sent.messages:
        try:
            decoded = _decode_message(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            refused += 1
            reason = reason or f"message {position} is not a JSON object or an array of them: {error}"
            continue
        values = {"topic": topic, "position": msgspec.Raw(encode(position))}
        fill = {name: values[meaning] for name, meaning in filled.items()}
        several = [decoded] if isinstance(decoded, dict) else decoded
        records.extend(_without(record, fill) | fill for record in several)
    return records, refused, reason


def _without(record: Columns, names: Iterable[str]) -> Columns:
    """The record without these columns, in any case."""
    lower = {name.lower() for name in names}
    return {name: value for name, value in record.items() if name.lower() not in lower} if lower else record
