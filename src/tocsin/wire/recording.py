"""Recording topics into datasets: what the home of a topic sends to the data cluster, in MessagePack.

The home sends messages in order. Of a persistent topic it names the cursor behind which they lie, and the data cluster
stores the records and the new cursor together, if the cursor has that value; so every message is recorded once,
whichever home sends it and however often. Of a volatile topic it sends an Idempotency-Key instead, which only the same
home knows.
"""

from __future__ import annotations

import msgspec

from tocsin.model.ids import DatasetName, TopicName

TOPIC_RECORDS = "/v1/datasets/{name}/topic-records"
"""POST `TopicRecords` → `TopicRecordsAnswer`, once the records are on disk."""
RECORDING_TOKENS = "/v1/brokers/{broker}/recording_tokens"
"""At the coordinator. POST `RecordingTokenRequest` → `RecordingToken`, for the home of a recorded topic."""


class TopicRecords(msgspec.Struct):
    recording: str
    topic: TopicName
    grant: str
    """The coordinator's word that this broker is the home of a topic that is recorded into this dataset."""
    messages: list[tuple[str, bytes]] = []
    """(position, message): a JSON object, or an array of them."""
    after: int | None = None
    """Persistent topics: the cursor. None, with no messages either, asks for it."""
    upto: int | None = None
    """Persistent topics: the cursor when these messages are stored."""
    key: str | None = None
    """Volatile topics: a repeated request with the same key stores nothing."""


class TopicRecordsAnswer(msgspec.Struct):
    upto: int | None = None
    """Persistent topics: the cursor now. If it is not the `upto` of the request, nothing was stored."""
    accepted: int = 0
    refused: int = 0
    """Messages that are no JSON, and records that do not fit the dataset."""
    reason: str | None = None
    """Why the first of them was refused."""


class RecordingTokenRequest(msgspec.Struct):
    topic: TopicName


class RecordingToken(msgspec.Struct):
    token: str
    dataset: DatasetName


encode = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(TopicRecordsAnswer).decode
