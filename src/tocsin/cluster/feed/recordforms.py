"""The forms of a request body, and how to split a body into raw records.

Forms: a JSON array, one JSON object, JSON lines, CloudEvents 1.0, and a CAP alert (which the gateway converts to JSON
first). Splitting is the slow path, for bodies with an error or with CloudEvents; `records.py` reads a good body in one
call. A raw record is the bytes that the publisher sent, with its index in the request. Damage inside one element of an
array (a lone surrogate, `NaN`, bytes that are not UTF-8) makes the gateway refuse that element, not the request.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from json.decoder import JSONDecodeError
from typing import Any, ClassVar

import msgspec


class RecordForm(StrEnum):
    JSON = "application/json"
    """An array of objects, or one object."""
    LINES = "application/x-ndjson"
    CLOUDEVENT = "application/cloudevents+json"
    CLOUDEVENTS_BATCH = "application/cloudevents-batch+json"
    CAP = "application/cap+xml"
    """One alert of the Common Alerting Protocol 1.2. `cluster.cap` makes JSON records of it first."""

    @classmethod
    def of_content_type(cls, content_type: str) -> RecordForm | None:
        """`application/json; charset=utf-8` → JSON; None for a content type that the gateway does not read."""
        essence = content_type.partition(";")[0].strip().lower()
        return _CONTENT_TYPES.get(essence)


_CONTENT_TYPES = {form.value: form for form in RecordForm} | {
    "": RecordForm.JSON,
    "application/jsonl": RecordForm.LINES,
    "application/jsonlines": RecordForm.LINES,
    "application/x-jsonlines": RecordForm.LINES,
    "application/ndjson": RecordForm.LINES,
    "application/xml": RecordForm.CAP,
    "text/xml": RecordForm.CAP,
}


@dataclass(frozen=True, slots=True)
class RecordRefusal:
    """One record that is not stored, although the other records of its request are."""

    index: int
    field: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """A request that cannot be read. Nothing of it is stored."""

    status: ClassVar[int] = 400
    reason: str


@dataclass(frozen=True, slots=True)
class TooMany:
    """More records than one request may carry."""

    limit: int


@dataclass(frozen=True, slots=True)
class RawRecords:
    raws: list[bytes]
    indexes: list[int]
    """The index of each raw record in the request."""
    refusals: list[RecordRefusal]


JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_elements = msgspec.json.Decoder(list[msgspec.Raw])
_whitespace = re.compile(r"[ \t\r\n]*")


class _RecordEvent(msgspec.Struct):
    """The attributes CloudEvents 1.0 requires; others are allowed and not stored."""

    id: str
    source: str
    type: str
    specversion: str
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data_base64: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_cloud_event = msgspec.json.Decoder(_RecordEvent)


def split_records(body: bytes, form: RecordForm, max_records: int) -> RawRecords | Malformed | TooMany:
    raws: list[bytes] | Malformed | TooMany
    match form:
        case RecordForm.LINES:
            raws = _split_lines(body, max_records)
        case RecordForm.CLOUDEVENT:
            raws = [body]
        case RecordForm.CLOUDEVENTS_BATCH:
            raws = _split_array(body, max_records)
        case RecordForm.JSON:
            raws = _split_array(body, max_records) if body.lstrip()[:1] == b"[" else _split_object(body, max_records)
        case RecordForm.CAP:
            return Malformed("an alert is no list of records")  # the gateway has converted alerts before
    if not isinstance(raws, list):
        return raws
    if form in (RecordForm.CLOUDEVENT, RecordForm.CLOUDEVENTS_BATCH):
        return _unwrap(raws)
    return RawRecords(raws, list(range(len(raws))), [])


def _split_lines(body: bytes, max_records: int) -> list[bytes] | TooMany:
    if body.count(b"\n") > max_records:
        return TooMany(max_records)
    raws = [line for line in body.split(b"\n") if line.strip()]
    return TooMany(max_records) if len(raws) > max_records else raws


def _split_object(body: bytes, max_records: int) -> list[bytes] | Malformed | TooMany:
    """Split a body that is one object, possibly over several lines. Any other body is split as JSON lines."""
    if not body.strip():
        return Malformed("the body is empty")
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
        return [body]
    except JSON_ERRORS:
        return _split_lines(body, max_records)


def _split_array(body: bytes, max_records: int) -> list[bytes] | Malformed | TooMany:
    # With fewer commas than allowed records the list cannot be too long, so decode it at once.
    if body.count(b",") < max_records:
        try:
            return [bytes(raw) for raw in _elements.decode(body)]
        except JSON_ERRORS:
            pass
    return _split_array_by_element(body, max_records)


def _split_array_by_element(body: bytes, max_records: int) -> list[bytes] | Malformed | TooMany:
    """Split element by element with Python's own parser: stops at the limit and tolerates damage inside an element."""
    text = body.decode("utf-8", "surrogateescape")
    raws: list[bytes] = []
    try:
        position = _skip(text, 0)
        if text[position : position + 1] != "[":
            return Malformed("expected a JSON array")
        position = _skip(text, position + 1)
        if text[position : position + 1] == "]":
            return raws if _skip(text, position + 1) == len(text) else Malformed("something follows the JSON array")
        while True:
            _, end = _tolerant.raw_decode(text, position)
            if len(raws) == max_records:
                return TooMany(max_records)
            raws.append(text[position:end].encode("utf-8", "surrogateescape"))
            position = _skip(text, end)
            separator = text[position : position + 1]
            if separator == "]":
                after_array = _skip(text, position + 1)
                return raws if after_array == len(text) else Malformed("something follows the JSON array")
            if separator != ",":
                return Malformed(f"expected `,` or `]` in the JSON array at character {position}")
            position = _skip(text, position + 1)
    except JSONDecodeError as error:
        return Malformed(f"not JSON at character {error.pos}: {error.msg}")
    except RecursionError:
        return Malformed("nested too deeply")


def _skip(text: str, position: int) -> int:
    """The position behind the blanks. A body may consist of millions of them: a loop would take seconds."""
    blanks = _whitespace.match(text, position)
    assert blanks is not None
    return blanks.end()


# Finds only where an element ends. It does not convert numbers: that takes quadratic time for a huge one.
_tolerant = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len)


def _unwrap(events: list[bytes]) -> RawRecords:
    """The `data` of each event."""
    records = RawRecords([], [], [])
    for index, event in enumerate(events):
        data = _data_of(event, index)
        if isinstance(data, RecordRefusal):
            records.refusals.append(data)
        else:
            records.raws.append(data)
            records.indexes.append(index)
    return records


def _data_of(event: bytes, index: int) -> bytes | RecordRefusal:
    try:
        cloud_event = _cloud_event.decode(event)
    except JSON_ERRORS as error:
        field, reason = describe(error)
        return RecordRefusal(index, field, f"no CloudEvent: {reason}")
    for field in ("id", "source", "type"):
        if not getattr(cloud_event, field):
            return RecordRefusal(index, field, "no CloudEvent: the attribute is empty")
    if cloud_event.specversion != "1.0":
        return RecordRefusal(index, "specversion", f"expected CloudEvents 1.0, got {cloud_event.specversion[:20]!r}")
    if isinstance(cloud_event.data, msgspec.UnsetType):
        encoded = not isinstance(cloud_event.data_base64, msgspec.UnsetType)
        return RecordRefusal(
            index, "data", "the record goes into `data` as JSON" + (", not data_base64" if encoded else "")
        )
    return bytes(cloud_event.data)


def describe(error: Exception) -> tuple[str | None, str]:
    """(field, reason) from msgspec's error about one JSON object."""
    if isinstance(error, UnicodeDecodeError):
        return None, "not valid UTF-8"
    if isinstance(error, RecursionError):
        return None, "nested too deeply"
    text, at, path = str(error).partition(" - at `$")
    field: Any = path.rstrip("`").lstrip(".").split(".")[0].split("[")[0] if at else None
    for beginning in ("Object missing required field `", "Object contains unknown field `"):
        if not field and text.startswith(beginning):
            field = text[len(beginning) :].rstrip("`")[:128]
            text = "missing" if "missing" in beginning else "unknown field"
    if not isinstance(error, msgspec.ValidationError):
        text = f"not valid JSON: {text}"
    return field or None, text
