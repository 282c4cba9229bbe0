"""The topic by which the MQTT parts of brokers talk to each other: retained messages, and addresses.

Every broker with MQTT clients receives this topic. Its home orders the records, so all brokers apply the changes of
retained messages in the same order. A broker that starts asks for the state; one of the others answers.
"""

from __future__ import annotations

import msgspec

from tocsin.model.topic import CONTROL_PREFIX

CONTROL_TOPIC = f"{CONTROL_PREFIX}control"
"""In MQTT `$mqtt/control`: clients cannot publish to it, and no filter matches it."""


class Record(msgspec.Struct, array_like=True, tag=True, frozen=True):
    broker: str
    """The broker that wrote the record."""


class RetainedSet(Record, tag="set", frozen=True):
    number: int
    topic: str
    data: bytes
    """The message as its home carries it; empty to remove the retained message."""


class StateRequested(Record, tag="ask", frozen=True):
    pass


class RetainedEntry(msgspec.Struct, array_like=True, frozen=True):
    topic: str
    epoch: int
    sequence: int
    data: bytes
    age_s: float


class StateAnswered(Record, tag="state", frozen=True):
    """A part of the retained messages, for the broker that asked."""

    asker: str
    entries: list[RetainedEntry]
    is_last: bool


class BrokerAnnounced(Record, tag="hello", frozen=True):
    address: str
    """For the `Server Reference` of other brokers; empty if the broker takes no clients now."""


AnyRecord = RetainedSet | StateRequested | StateAnswered | BrokerAnnounced
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRecord)


def record_bytes(record: AnyRecord) -> bytes:
    return _encoder.encode(record)


def record_of(data: bytes) -> AnyRecord | None:
    """The record; None if the bytes are none."""
    try:
        record: AnyRecord = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return record
