"""The data types of MQTT packets [MQTT5 §1.5]: integers, variable byte integers, UTF-8 strings and binary data."""

from __future__ import annotations

from tocsin.broker.mqtt.reasons import PacketError, Reason

_MOST_VARINT_BYTES = 4


class Cursor:
    """Reads the body of one packet. A read beyond its end is a malformed packet."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)

    @property
    def is_at_end(self) -> bool:
        return self.at >= self.end

    def take(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        if self.at > self.end:
            raise PacketError(Reason.MALFORMED_PACKET, "the packet ends inside a field")
        return self.data[start : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def varint(self) -> int:
        value = 0
        for shift in range(_MOST_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * shift)
            if not byte & 0x80:
                return value
        raise PacketError(Reason.MALFORMED_PACKET, "a variable byte integer has more than four bytes")

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        """A UTF-8 string; U+0000 and surrogates are forbidden [MQTT-1.5.4-1, MQTT-1.5.4-2]."""
        try:
            text = self.binary().decode("utf-8")
        except UnicodeDecodeError as error:
            raise PacketError(Reason.MALFORMED_PACKET, "a string is not valid UTF-8") from error
        if "\0" in text:
            raise PacketError(Reason.MALFORMED_PACKET, "a string contains the character U+0000")
        return text

    def packet_id(self) -> int:
        number = self.number(2)
        if number == 0:
            raise PacketError(Reason.MALFORMED_PACKET, "the packet identifier is 0")
        return number

    def rest(self) -> bytes:
        start, self.at = self.at, self.end
        return self.data[start:]


def varint_bytes(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        parts.append(low | (0x80 if value else 0))
        if not value:
            return bytes(parts)


def text_bytes(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data
