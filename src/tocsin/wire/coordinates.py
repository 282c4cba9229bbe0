"""Network coordinates between processes [ePulsar §3.2]: probes between brokers, and the reports on the link.

A broker opens a WebSocket to each of the few peers that the coordinator names, with a token that the coordinator gives
to brokers alone, and sends `Probe` now and then. The peer answers at once with its own coordinate. MessagePack, one
message per binary frame.
"""

from __future__ import annotations

import msgspec

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId

PATH = "/v1/probes"
FRAME_BYTES = 1024
"""Largest message in either direction."""


# -- between brokers ---------------------------------------------------------------------------------------------------


class Probe(msgspec.Struct, frozen=True, array_like=True):
    number: int


class ProbeAnswer(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """The number of the probe."""
    coordinate: Coordinate


# -- on the link to the coordinator ------------------------------------------------------------------------------------


class CoordinateReport(msgspec.Struct, frozen=True, tag_field="type", tag="coordinate"):
    """From the broker, every few seconds: its coordinate with the estimate of its own error. It has constant size."""

    coordinate: Coordinate


class Peer(msgspec.Struct, frozen=True):
    broker: BrokerId
    address: str
    """The address that the broker registered."""


class CoordinatePeers(msgspec.Struct, frozen=True, tag_field="type", tag="coordinate_peers"):
    """From the coordinator: the brokers to measure. It replaces the former list, and asks for a report at once."""

    peers: list[Peer]
