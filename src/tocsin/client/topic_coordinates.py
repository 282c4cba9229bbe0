"""A client's network coordinate: it measures brokers over its topic connections [ePulsar §3.2]. Pure.

The client sends `probe` over each open connection now and then. The answer carries the broker's coordinate, and the
estimator moves the client's own by it. The client returns the answer's number with its coordinate at once, by which the
broker measures the client. Round trips to a single broker say how far away the client is, not in which direction, so
the client has no coordinate before it has measured several brokers.

A mobile client moves too fast for that: it names a gateway, a broker near it. It uses the gateway's coordinate, with
the round trip to the gateway as height [ePulsar §4], and reports at once when it has another gateway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tocsin.client.topic_connection import ClientConnection
from tocsin.client.topic_events import Effect, Send
from tocsin.coords.coordinate import Coordinate, behind_proxy
from tocsin.coords.estimator import LIVE_TUNING, LOW_OF_8, Estimator
from tocsin.wire import topic as wire

PROBE_S = 5.0
"""Pause between two probes of one broker; the paper's clients report as often [ePulsar §4]."""
FIRST_PROBE_S = 0.3
FIRST_SAMPLES = 20
"""Measurements of one broker at the short pause."""
REFERENCES = 3
"""Brokers to measure before the coordinate counts; fewer if the network has fewer."""


@dataclass(slots=True)
class _Measured:
    probe: int | None = None
    """The request without an answer."""
    sent_s: float = float("-inf")
    samples: int = 0
    stale: bool = False
    """The client has moved since the last probe was sent."""
    moved: bool = False
    """The probe without an answer is the first one after a move."""


@dataclass(slots=True)
class ClientAgent:
    normal: Callable[[], float]
    """Draws numbers with a standard normal distribution."""
    references: int = REFERENCES
    prompt: bool = True
    """Probe new connections, and all after a move, at once. False: every `PROBE_S` only, as [ePulsar §4]."""
    gateway: str | None = None
    """The address of a broker near a mobile client; None for a client that stays."""
    _gateway_at: Coordinate | None = None
    _access_s: deque[float] = field(default_factory=lambda: deque(maxlen=8))
    """The last round trips to the gateway."""
    _began_s: float | None = None
    _estimator: Estimator = field(init=False)
    _by_connection: dict[int, _Measured] = field(default_factory=dict)
    _answered: set[str] = field(default_factory=set)
    """Addresses of the brokers that have answered with a coordinate."""
    _number: int = 0

    def __post_init__(self) -> None:
        self._estimator = Estimator(self.normal, LIVE_TUNING, LOW_OF_8)

    @property
    def coordinate(self) -> Coordinate | None:
        if self.gateway is not None:
            if self._gateway_at is None or not self._access_s:
                return None
            return behind_proxy(self._gateway_at, min(self._access_s)).rounded()
        coordinate = self._estimator.coordinate.rounded()
        return coordinate if len(self._answered) >= self.references and coordinate.is_settled else None

    def use_gateway(self, address: str | None) -> None:
        """The client has moved and has this gateway now: what it has measured before says nothing any more."""
        self.gateway, self._gateway_at = address, None
        self._access_s.clear()
        for measured in self._by_connection.values():
            measured.stale = True
            if self.prompt:
                measured.samples = 0

    def probes(self, connections: Iterable[ClientConnection], now_s: float) -> Iterator[Effect]:
        """The probes that are due. Connections that are gone are forgotten."""
        present: dict[int, _Measured] = {}
        if self._began_s is None:
            self._began_s = now_s
        beat_s = now_s - (now_s - self._began_s) % PROBE_S
        for connection in connections:
            if not (connection.ready and connection.probes):
                continue
            is_prompt = self.prompt or connection.address == self.gateway
            first_s = float("-inf") if is_prompt else beat_s
            known = self._by_connection.get(connection.number)
            measured = present[connection.number] = known or _Measured(sent_s=first_s)
            pause_s = FIRST_PROBE_S if is_prompt and measured.samples < FIRST_SAMPLES else PROBE_S
            # After a move the short pause counts, also if an answer is missing. Not less: the broker would refuse it.
            is_due_soon = measured.probe is None or (is_prompt and measured.stale)
            if now_s - measured.sent_s >= (pause_s if is_due_soon else 2 * PROBE_S):
                self._number -= 1  # requests of the session have positive numbers
                measured.probe, measured.sent_s = self._number, now_s
                measured.moved, measured.stale = measured.moved or measured.stale, False
                yield Send(connection.number, wire.Probe(self._number))
        self._by_connection = present

    def refused(self, connection: ClientConnection, message: wire.Refused) -> None:
        """The broker did not answer a probe, for example because the network brought two of them close together."""
        measured = self._by_connection.get(connection.number)
        if measured is not None and measured.probe == message.id:
            measured.probe = None
            measured.stale, measured.moved = measured.stale or measured.moved, False

    def probed(self, connection: ClientConnection, answer: wire.Probed, now_s: float) -> Iterator[Effect]:
        measured = self._by_connection.get(connection.number)
        if measured is None or measured.probe != answer.id:
            return
        measured.probe = None
        measured.samples += 1
        moved, measured.moved = measured.moved, False
        if self.gateway is not None:
            if connection.address == self.gateway and answer.coordinate is not None and not measured.stale:
                self._gateway_at = answer.coordinate
                self._access_s.append(now_s - measured.sent_s)
        elif answer.coordinate is not None:
            rejected = self._estimator.observe(connection.address, answer.coordinate, now_s - measured.sent_s)
            if rejected is None:
                self._answered.add(connection.address)
        yield Send(connection.number, wire.Locate(answer.nonce, self.coordinate, moved))
