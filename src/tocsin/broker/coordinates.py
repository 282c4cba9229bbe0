"""A broker's agent of network coordinates [ePulsar §3.2]: `handle(event, now_s) -> effects`. No clock and no socket.

The agent probes one of its few peers at a time, several times a second after the start and about once a second later.
Each answer carries the peer's coordinate; the estimator moves the broker's own coordinate by it. The agent reports the
coordinate to the coordinator. Only brokers move a broker's coordinate: clients are not trusted (`client_coordinates`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.coords.coordinate import Coordinate
from tocsin.coords.estimator import LIVE_TUNING, LOW_OF_8, Estimator
from tocsin.model.ids import BrokerId
from tocsin.wire.coordinates import CoordinatePeers, CoordinateReport, Probe, ProbeAnswer

PROBE_S = 1.0
"""Pause between two probes; Serf's value [ePulsar §4]."""
FIRST_PROBE_S = 0.2
"""Pause between two probes of a new agent."""
FIRST_SAMPLES = 150
"""Measurements of a new agent at the short pause: enough to settle among a few peers within half a minute."""
REPORT_S = 5.0
"""Pause between two reports [ePulsar §4]."""
FIRST_REPORT_S = 1.0
ANSWER_S = 10.0
"""A probe without an answer for this long is forgotten."""


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeersNamed:
    """The coordinator named the peers to measure."""

    message: CoordinatePeers


@dataclass(frozen=True, slots=True)
class PeerConnected:
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class PeerLost:
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    broker: BrokerId
    answer: ProbeAnswer


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed; the driver reports it several times a second."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The process is stopping."""


Event = PeersNamed | PeerConnected | PeerLost | ProbeAnswered | Ticked | StopRequested


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectPeer:
    """Keep a connection to this broker open, and report `PeerConnected` and `PeerLost`."""

    broker: BrokerId
    address: str


@dataclass(frozen=True, slots=True)
class DisconnectPeer:
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class SendProbe:
    broker: BrokerId
    probe: Probe


@dataclass(frozen=True, slots=True)
class ReportCoordinate:
    report: CoordinateReport


Effect = ConnectPeer | DisconnectPeer | SendProbe | ReportCoordinate


@dataclass(slots=True)
class _Peer:
    address: str
    connected: bool = False
    probe: int | None = None
    """The number of the probe without an answer; None if there is none."""
    sent_s: float = 0.0
    rtt_s: float | None = None
    """The last measured round-trip time."""


@dataclass(slots=True)
class CoordinateAgent:
    normal: Callable[[], float]
    """Draws numbers with a standard normal distribution."""
    draw: Callable[[], float]
    """Draws numbers uniform in [0, 1)."""
    _estimator: Estimator = field(init=False)
    _peers: dict[BrokerId, _Peer] = field(default_factory=dict)
    _number: int = 0
    _probe_at_s: float = 0.0
    _report_at_s: float = 0.0
    _reported: Coordinate | None = None
    _effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._estimator = Estimator(self.normal, LIVE_TUNING, LOW_OF_8)

    @property
    def coordinate(self) -> Coordinate | None:
        """The broker's own coordinate; None before its first measurement."""
        return self._estimator.coordinate.rounded() if self._estimator.accepted else None

    @property
    def answer(self) -> Coordinate:
        """The coordinate for peers: also that of an agent without a measurement, whose error counts it as unknown."""
        return self._estimator.coordinate.rounded()

    @property
    def samples(self) -> int:
        """Measurements that the estimator has used."""
        return self._estimator.accepted

    @property
    def rejected(self) -> int:
        """Measurements that the estimator has refused."""
        return self._estimator.rejected.total()

    def measured_s(self) -> dict[BrokerId, float]:
        """The last round-trip time to each peer that has answered."""
        return {name: peer.rtt_s for name, peer in self._peers.items() if peer.rtt_s is not None}

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case PeersNamed(message):
                self._take_peers(message)
                self._report_at_s, self._reported = now_s, None
            case PeerConnected(name):
                if name in self._peers:
                    self._peers[name].connected = True
            case PeerLost(name):
                if name in self._peers:
                    self._peers[name].connected, self._peers[name].probe = False, None
            case ProbeAnswered(name, answer):
                self._take_answer(name, answer, now_s)
            case Ticked():
                self._probe(now_s)
                self._report(now_s)
            case StopRequested():
                self._take_peers(CoordinatePeers([]))
        effects, self._effects = self._effects, []
        return effects

    def _take_peers(self, message: CoordinatePeers) -> None:
        named = {peer.broker: peer.address for peer in message.peers}
        for name in [name for name, peer in self._peers.items() if named.get(name) != peer.address]:
            del self._peers[name]
            self._estimator.forget(name)
            self._effects.append(DisconnectPeer(name))
        for name, address in named.items():
            if name not in self._peers:
                self._peers[name] = _Peer(address)
                self._effects.append(ConnectPeer(name, address))

    def _probe(self, now_s: float) -> None:
        """Probe a random peer that has no probe on its way."""
        if now_s < self._probe_at_s:
            return
        for peer in self._peers.values():
            if peer.probe is not None and now_s - peer.sent_s > ANSWER_S:
                peer.probe = None
        idle = [name for name, peer in self._peers.items() if peer.connected and peer.probe is None]
        if not idle:
            return
        name = idle[int(self.draw() * len(idle))]
        self._number += 1
        self._peers[name].probe, self._peers[name].sent_s = self._number, now_s
        # A random pause: brokers that started together do not probe at the same moments.
        pause_s = FIRST_PROBE_S if self._estimator.accepted < FIRST_SAMPLES else PROBE_S
        self._probe_at_s = now_s + pause_s * (0.75 + 0.5 * self.draw())
        self._effects.append(SendProbe(name, Probe(self._number)))

    def _take_answer(self, name: BrokerId, answer: ProbeAnswer, now_s: float) -> None:
        peer = self._peers.get(name)
        if peer is None or peer.probe != answer.number:
            return  # the probe is forgotten, or the peer invented its number
        peer.probe = None
        if self._estimator.observe(name, answer.coordinate, now_s - peer.sent_s) is None:
            peer.rtt_s = now_s - peer.sent_s

    def _report(self, now_s: float) -> None:
        coordinate = self.coordinate
        if coordinate is None or now_s < self._report_at_s:
            return
        pause_s = FIRST_REPORT_S if self._estimator.accepted < FIRST_SAMPLES else REPORT_S
        self._report_at_s = now_s + pause_s
        if coordinate != self._reported:
            self._reported = coordinate
            self._effects.append(ReportCoordinate(CoordinateReport(coordinate)))
