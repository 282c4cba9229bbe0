"""Converts publishers' JSON to canonical JSON lines: one line a record, columns in schema order, one spelling a value.

A codec is made from a dataset's schema and key. Three calls into msgspec parse, check and write a good body. Only a
body with an error is decoded record by record, to report which record is wrong and why. A missing column is left out of
the line (`from_json` reads null). No I/O. `gateway.py` calls it from any thread.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

from tocsin.cluster.feed.columntypes import (
    HINTS,
    Canonicaliser,
    NotStorable,
    canonical_float,
    canonical_timestamp,
    canonicaliser,
    json_type,
    positive_zero,
    set_timestamps,
)
from tocsin.cluster.feed.recordforms import (
    JSON_ERRORS,
    Malformed,
    RawRecords,
    RecordForm,
    RecordRefusal,
    TooMany,
    describe,
    split_records,
)
from tocsin.model.schema import Schema

DEFAULT_MAX_RECORDS = 100_000
_HINTS_PER_REQUEST = 100
"""The search for the most similar column name takes ~50 µs. The limit keeps a request with many unknown names cheap."""

RECORDS_IN_A_ROW = 256
"""Records that are decoded one by one before a pause: 1 to 5 ms."""
HOPELESS = 1_000
"""After so many wrong records and no good one, the publisher's program is wrong, and the rest of its body too."""
U16: TypeAlias = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Decoded:
    lines: bytes
    """Canonical JSON lines of the good records, joined by newlines."""
    count: int
    digests: list[bytes]
    """Key digest of each good record; empty if the dataset has no key or the codec makes no digests."""
    refusals: list[RecordRefusal]
    not_read: int = 0
    """Records that were not looked at, because all before them were wrong."""


class RecordCodec:
    def __init__(
        self,
        schema: Schema,
        key: Sequence[str] = (),
        max_records: int = DEFAULT_MAX_RECORDS,
        digest_seed: int | None = 0,
    ) -> None:
        """Make a codec for this schema and key. With `digest_seed` None it makes no digests."""
        self.schema = schema
        self.key = tuple(key)
        self.max_records = max_records
        # Numbered attributes: a column may be called `class` or `from`.
        attributes = {column.name: f"c{number}" for number, column in enumerate(schema.columns)}
        fields: list[Any] = [
            (attributes[column.name], json_type(column.type))
            if column.name in self.key
            else (attributes[column.name], json_type(column.type) | None | msgspec.UnsetType, msgspec.UNSET)
            for column in schema.columns
        ]
        record: Any = msgspec.defstruct(
            "Record",
            fields,
            rename={attribute: name for name, attribute in attributes.items()},
            forbid_unknown_fields=True,
            kw_only=True,
            gc=False,
        )
        self._record_decoder = msgspec.json.Decoder(record)
        self._list_decoder = msgspec.json.Decoder(list[record])
        self._encoder = msgspec.json.Encoder(decimal_format="number")
        self._timestamps = [attributes[column.name] for column in schema.columns if column.type == "TIMESTAMP"]
        self._others: list[tuple[str, Canonicaliser]] = []
        for column in schema.columns:
            canonical = canonicaliser(column.type)
            if column.name in self.key and column.type == "DOUBLE":
                canonical = positive_zero
            elif column.name in self.key and column.type == "FLOAT":
                canonical = _positive_float
            if canonical is not None and column.type != "TIMESTAMP":
                self._others.append((attributes[column.name], canonical))
        self._names = {attribute: name for name, attribute in attributes.items()}
        key_attributes = [] if digest_seed is None else [attributes[name] for name in self.key]
        self._digests = self._digest_function(key_attributes, digest_seed or 0)

    def decode(
        self, body: bytes, form: RecordForm, pause: Callable[[], None] | None = None, may_give_up: bool = False
    ) -> Decoded | Malformed | TooMany:
        """All good records of a request, and a refusal with index, field and reason for each bad one.

        A body with errors takes long: then `pause` is called after every few records, to let other threads run.
        """
        return self.decode_good(body, form) or self.decode_closely(body, form, pause, may_give_up)

    def decode_good(self, body: bytes, form: RecordForm) -> Decoded | None:
        """Decode the whole body at once: a few milliseconds per MiB. None if `decode_closely` must decode it."""
        if form is RecordForm.LINES:
            return self._decode_good(body, lines=True)
        if form is not RecordForm.JSON:
            return None
        if body.lstrip()[:1] != b"{":
            return self._decode_good(body, lines=False)
        alone = self._decode_good(b"[%b]" % body, lines=False)
        return alone if alone is not None and alone.count == 1 else self._decode_good(body, lines=True)

    def decode_closely(
        self, body: bytes, form: RecordForm, pause: Callable[[], None] | None = None, may_give_up: bool = False
    ) -> Decoded | Malformed | TooMany:
        """Decode record by record. It takes up to two seconds per MiB.

        With `may_give_up`, a body whose first `HOPELESS` records are wrong is refused without reading the others.
        """
        parts = split_records(body, form, self.max_records)
        if not isinstance(parts, RawRecords):
            return parts
        if form in (RecordForm.CLOUDEVENT, RecordForm.CLOUDEVENTS_BATCH) and not parts.refusals:
            whole = self._decode_good(b"[" + b",".join(parts.raws) + b"]", lines=False)
            if whole is not None and whole.count == len(parts.raws):
                return whole
        return self._decode_each(parts, pause, may_give_up)

    def digests(self, lines: bytes) -> list[bytes]:
        """Key digests, 16 bytes each, of the canonical lines in a frame's payload."""
        records = self._record_decoder.decode_lines(lines)
        self._canonicalise(records)
        return self._digests(records)

    def _decode_good(self, body: bytes, lines: bool) -> Decoded | None:
        """Decode the whole body at once; None if something in it is wrong or needs a closer look."""
        # Bound the number of records before they cost memory. The shortest record is `{},`.
        if len(body) > 3 * self.max_records and body.count(b"{") > self.max_records:
            return None
        try:
            records = self._record_decoder.decode_lines(body) if lines else self._list_decoder.decode(body)
            self._canonicalise(records)
        except (*JSON_ERRORS, NotStorable):
            return None
        canonical = self._encoder.encode_lines(records)[:-1]
        # A body in canonical spelling has no field twice. A record never contains an unescaped newline.
        as_sent = not lines and body.startswith(canonical.replace(b"\n", b","), 1)
        if not as_sent and _may_repeat_names(body, canonical):
            return None
        return Decoded(canonical, len(records), self._digests(records), [])

    def _decode_each(self, parts: RawRecords, pause: Callable[[], None] | None, may_give_up: bool) -> Decoded:
        refusals = parts.refusals
        records: list[Any] = []
        not_read = 0
        for position, (index, raw) in enumerate(zip(parts.indexes, parts.raws, strict=True)):
            if pause is not None and not index % RECORDS_IN_A_ROW:
                pause()
            record = self._decode_one(raw, index, hint=len(refusals) < _HINTS_PER_REQUEST)
            if isinstance(record, RecordRefusal):
                refusals.append(record)
                if may_give_up and not records and len(refusals) >= HOPELESS:
                    not_read = len(parts.raws) - position - 1
                    break
            else:
                records.append(record)
        refusals.sort(key=lambda refusal: refusal.index)
        return Decoded(
            self._encoder.encode_lines(records)[:-1], len(records), self._digests(records), refusals, not_read
        )

    def _decode_one(self, raw: bytes, index: int, hint: bool) -> Any:
        try:
            record = self._record_decoder.decode(raw)
        except JSON_ERRORS as error:
            return self._refusal(index, *describe(error), hint)
        for attribute in self._names:
            try:
                self._canonicalise_column([record], attribute)
            except NotStorable as error:
                return self._refusal(index, self._names[attribute], str(error), hint)
        if _may_repeat_names(raw, self._encoder.encode(record)) and (repeated := _repeated_name(raw)) is not None:
            return RecordRefusal(index, repeated, "the field occurs twice")
        return record

    def _refusal(self, index: int, field: str | None, reason: str, hint: bool) -> RecordRefusal:
        if field is None:
            return RecordRefusal(index, None, reason)
        column_type = self.schema.type_of(field)
        if column_type is None:
            near = (
                difflib.get_close_matches(field, self.schema.names, n=1) if hint and reason == "unknown field" else []
            )
            return RecordRefusal(index, field, f"{reason}; did you mean {near[0]}?" if near else reason)
        if reason == "missing" or (field in self.key and reason.endswith("got `null`")):
            return RecordRefusal(index, field, "missing, and part of the KEY")
        return RecordRefusal(index, field, f"{reason}; the column is {column_type}{HINTS.get(column_type, '')}")

    def _canonicalise(self, records: list[Any]) -> None:
        for attribute in self._timestamps:
            set_timestamps(records, attribute)
        for attribute, canonical in self._others:
            _apply(records, attribute, canonical)

    def _canonicalise_column(self, records: list[Any], attribute: str) -> None:
        if attribute in self._timestamps:
            _apply(records, attribute, canonical_timestamp)
        for other, canonical in self._others:
            if other == attribute:
                _apply(records, attribute, canonical)

    def _digest_function(self, attributes: list[str], seed: int) -> Callable[[list[Any]], list[bytes]]:
        """Hash a single STRING key as it is, and any other key as the JSON array of its canonical values.

        XXH3 is six times faster than a cryptographic hash. It is safe here: an attacker would have to find a collision
        without the seed and without ever seeing a digest.
        """
        if not attributes:
            return lambda records: []
        if len(attributes) == 1 and self.schema.type_of(self.key[0]) == "STRING":
            get: Callable[[Any], str] = attrgetter(attributes[0])
            return lambda records: [xxh3_128_digest(value.encode(), seed) for value in map(get, records)]
        encode = self._encoder.encode
        return lambda records: [
            xxh3_128_digest(encode([getattr(record, name) for name in attributes]), seed) for record in records
        ]


def _positive_float(value: float) -> float:
    return positive_zero(canonical_float(value))


def _apply(records: list[Any], attribute: str, canonical: Canonicaliser) -> None:
    for record in records:
        value = getattr(record, attribute)
        if value is not None and value is not msgspec.UNSET:
            setattr(record, attribute, canonical(value))


def _may_repeat_names(body: bytes, canonical: bytes) -> bool:
    """False only if no object in `body` has a field twice. msgspec would silently use the last of them.

    Every member contains `":` unless there are blanks before its colon. Inside strings, `":` appears as `\\":` in both
    texts, unless the body writes one of the two characters as a \\u escape. So without such blanks and escapes, equal
    counts mean equal numbers of members, and `canonical` has each member once.
    """
    if b"\\" in body and (b"\\u0022" in body or b"\\u003a" in body or b"\\u003A" in body):
        return True
    pairs = _pairs(body)
    if any(blank in body and _count(pairs, blank + b":") for blank in (b" ", b"\t", b"\n", b"\r")):
        return True
    return _count(pairs, b'":') != _count(_pairs(canonical), b'":')


def _pairs(text: bytes) -> tuple[U16, U16]:
    """All pairs of neighbouring bytes as numbers: those at even offsets and those at odd offsets."""
    return (
        np.frombuffer(text, dtype="<u2", count=len(text) // 2),
        # A copy, because numpy is slow on unaligned numbers.
        np.frombuffer(text[1:], dtype="<u2", count=(len(text) - 1) // 2 if text else 0),
    )


def _count(pairs: tuple[U16, U16], pair: bytes) -> int:
    """How often the two bytes occur. Several times faster than bytes.count."""
    number = int.from_bytes(pair, "little")
    return sum(int(np.count_nonzero(numbers == number)) for numbers in pairs)


def _repeated_name(raw: bytes) -> str | None:
    """The first field that an object in `raw` has twice, or None."""
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        repeated.extend(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]

    json.loads(raw, object_pairs_hook=collect, parse_int=len, parse_float=len)
    return repeated[0] if repeated else None
