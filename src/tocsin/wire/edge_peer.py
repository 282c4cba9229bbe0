"""The peer connection between a parent and a child: the negotiation about operators, in both directions [AMI table 3].

The child opens the connection with `OpenPeer`. Every WebSocket message is one msgpack value. A hand-over carries the
operators' states as plain bytes in the same message: 10 MB are encoded, sent on loopback and decoded in well under half
a second, and beats have a connection of their own. Tuples that follow an operator downwards are Arrow IPC streams.
"""

from __future__ import annotations

import msgspec

PATH = "/v1/edge/peer"
MESSAGE_BYTES = 256 << 20


class OpenPeer(msgspec.Struct, frozen=True, tag="open"):
    node: str
    generation: int


class UsageRow(msgspec.Struct, frozen=True, array_like=True):
    memory_pct: float
    cpu_pct: float
    network_pct: float


class TransferRow(msgspec.Struct, frozen=True, array_like=True):
    operators: list[str]
    destination: str
    usage: UsageRow


class ParcelRow(msgspec.Struct, frozen=True, array_like=True):
    operator: str
    usage: UsageRow
    state: bytes


class LeftoverRow(msgspec.Struct, frozen=True, array_like=True):
    operator: str
    port: int
    batch: bytes | None
    watermark_us: int | None


class PeerRow(msgspec.Struct, frozen=True, tag="message", omit_defaults=True):
    """One message of the negotiation. The fields are those of `edge.messages.PeerMessage`."""

    kind: str
    sender: str
    receiver: str
    initiator: str
    round: int
    urgent: str
    size_pct: float = 0.0
    transfers: list[TransferRow] = []
    handover: int | None = None
    parcels: list[ParcelRow] = []
    refusal: str | None = None
    barrier: int = 0
    leftovers: list[LeftoverRow] = []
    sender_epoch: int = 0
    receiver_epoch: int = 0


encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(OpenPeer | PeerRow)


def decode(message: bytes) -> OpenPeer | PeerRow:
    """Raises `msgspec.DecodeError`."""
    decoded: OpenPeer | PeerRow = _decoder.decode(message)
    return decoded
