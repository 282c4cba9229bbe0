"""The probes of another broker: each is answered at once with this broker's coordinate, up to a rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from tocsin.coords.coordinate import Coordinate
from tocsin.runtime.broker.broker_socket import BrokerSocket
from tocsin.runtime.broker.connection_guard import ConnectionGuard
from tocsin.wire.coordinates import FRAME_BYTES, PATH, Probe, ProbeAnswer

RATE_PER_S = 10.0
"""Probes of one connection that are answered; more are dropped. An agent sends at most seven a second."""
_decoder = msgspec.msgpack.Decoder(Probe)
_encode = msgspec.msgpack.Encoder().encode


class ProbeSocket(BrokerSocket):
    __slots__ = ("_allowance", "_allowed_at_s")
    path = PATH
    frame_bytes = FRAME_BYTES
    coordinate: ClassVar[Callable[[], Coordinate]]
    """The present coordinate of this broker."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state)
        self._allowance = RATE_PER_S
        self._allowed_at_s = self._loop.time()

    def on_open(self) -> None:
        return

    def on_binary(self, payload: bytes) -> None:
        try:
            probe = _decoder.decode(payload)
        except msgspec.DecodeError:
            self._transport.abort()
            return
        now_s = self._loop.time()
        self._allowance = min(RATE_PER_S, self._allowance + RATE_PER_S * (now_s - self._allowed_at_s))
        self._allowed_at_s = now_s
        if self._allowance >= 1.0:
            self._allowance -= 1.0
            self.write(_encode(ProbeAnswer(probe.number, type(self).coordinate())))


def probe_socket_class(guard: ConnectionGuard, coordinate: Callable[[], Coordinate]) -> type[ProbeSocket]:
    """The protocol class for uvicorn, which creates the instances itself."""

    class BoundProbeSocket(ProbeSocket):
        __slots__ = ()

    BoundProbeSocket.guard = guard
    BoundProbeSocket.coordinate = staticmethod(coordinate)
    return BoundProbeSocket
