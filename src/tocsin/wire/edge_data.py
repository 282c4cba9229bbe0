"""The data connection from an edge node to its parent: pieces of streams upwards, credits downwards.

Every WebSocket message is one msgpack array, with a tag first. The child opens the connection with `OpenData`. Before
the first piece for an input it sends `DeclareInput`, so that the operator's name and the schema travel once and each
piece has a number instead. A batch is an Arrow IPC record batch without its schema.

A child may send while the pieces it has sent cost less than the last `Credit`; a piece costs the bytes of its columns.
The parent raises the credit as it processes pieces. So a slow parent stops its children, and never holds more than it
granted plus one batch for each child.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

PATH = "/v1/edge/data"
_COMPRESS_BYTES = 256
"""Shorter messages are sent as they are."""
MESSAGE_BYTES = 256 << 20
"""The largest message, compressed or not. One batch is one message at least."""


class OpenData(msgspec.Struct, frozen=True, array_like=True, tag=0):
    node: str
    generation: int


class DeclareInput(msgspec.Struct, frozen=True, array_like=True, tag=1):
    number: int
    operator: str
    port: int
    schema: bytes | None
    """An Arrow IPC schema; None as long as only watermarks are sent."""


class PieceRow(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """Of the `DeclareInput`."""
    watermark_us: int | None
    batch: bytes | None


class Pieces(msgspec.Struct, frozen=True, array_like=True, tag=2):
    rows: list[PieceRow]


class Compressed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """An encoded `Pieces` message, compressed with zstd."""

    size_bytes: int
    """Of the `Pieces` message."""
    data: bytes


class Credit(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The bytes that the child may have sent on this connection in all."""

    total_bytes: int


FromChild = OpenData | DeclareInput | Pieces | Compressed
FromParent = Credit

encode = msgspec.msgpack.Encoder().encode
_from_child = msgspec.msgpack.Decoder(FromChild)
_from_parent = msgspec.msgpack.Decoder(FromParent)
_codec = pa.Codec("zstd", compression_level=1)

Item = tuple[str, int, pa.RecordBatch | None, int | None]
"""Operator, port, batch, watermark in microseconds."""


class MalformedData(Exception):
    """The peer sent bytes that are not messages of this protocol."""


def decode_credit(message: bytes) -> Credit:
    try:
        return _from_parent.decode(message)
    except msgspec.DecodeError as error:
        raise MalformedData(str(error)) from None


def decode_opening(message: bytes) -> OpenData:
    try:
        opening = _from_child.decode(message)
    except msgspec.DecodeError as error:
        raise MalformedData(str(error)) from None
    if not isinstance(opening, OpenData):
        raise MalformedData("expected OpenData first")
    return opening


class PieceEncoder:
    """Encodes the pieces of one connection."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], tuple[int, pa.Schema | None]] = {}
        self._next = 0

    def encode(self, items: Sequence[Item]) -> list[bytes]:
        """The messages for these pieces: declarations where needed, then one message with all pieces."""
        messages: list[bytes] = []
        rows: list[PieceRow] = []
        for operator, port, batch, watermark_us in items:
            number, schema = self._numbers.get((operator, port), (-1, None))
            if number < 0 or (batch is not None and (schema is None or not schema.equals(batch.schema))):
                number, schema = self._next, None if batch is None else batch.schema
                self._next += 1
                self._numbers[operator, port] = (number, schema)
                encoded = None if schema is None else schema.serialize().to_pybytes()
                messages.append(encode(DeclareInput(number, operator, port, encoded)))
            rows.append(PieceRow(number, watermark_us, None if batch is None else _encoded(batch)))
        messages.append(_compressed(encode(Pieces(rows))))
        return messages


class PieceDecoder:
    """Decodes the messages of one connection. Raises `MalformedData`."""

    def __init__(self) -> None:
        self._inputs: dict[int, tuple[str, int, pa.Schema | None]] = {}

    def decode(self, message: bytes) -> list[Item]:
        try:
            return self._items(_from_child.decode(message))
        except (msgspec.DecodeError, pa.ArrowException, OSError, EOFError, KeyError, ValueError) as error:
            raise MalformedData(f"{type(error).__name__}: {error}") from None

    def _items(self, message: FromChild) -> list[Item]:
        match message:
            case DeclareInput(number, operator, port, encoded):
                schema = None if encoded is None else pa.ipc.read_schema(pa.py_buffer(encoded))
                self._inputs[number] = (operator, port, schema)
                return []
            case Compressed(size_bytes, data):
                if not 0 < size_bytes <= MESSAGE_BYTES:
                    raise ValueError(f"a message of {size_bytes} bytes")
                plain = _from_child.decode(_codec.decompress(data, size_bytes, asbytes=True))
                if not isinstance(plain, Pieces):
                    raise ValueError("compressed messages contain pieces")
                return self._items(plain)
            case Pieces(rows):
                return [self._item(row) for row in rows]
        raise ValueError("the connection is open already")

    def _item(self, row: PieceRow) -> Item:
        operator, port, schema = self._inputs[row.number]
        if row.batch is None:
            return operator, port, None, row.watermark_us
        if schema is None:
            raise ValueError("a batch without a schema")
        batch = pa.ipc.read_record_batch(pa.py_buffer(row.batch), schema)
        batch.validate()
        return operator, port, batch, row.watermark_us


def _encoded(batch: pa.RecordBatch) -> bytes:
    encoded: bytes = batch.serialize().to_pybytes()
    return encoded


def _compressed(message: bytes) -> bytes:
    if len(message) < _COMPRESS_BYTES:
        return message
    data: Any = _codec.compress(message, asbytes=True)
    if len(data) > 0.9 * len(message):
        return message
    return encode(Compressed(len(message), data))
