"""The links to the coordinators of neighbouring sites, and the overlay head behind them [ePEER §4.3.2, decision 21].

`OverlayHead` decides what this site advertises and subscribes. This module opens links in epochs, translates between
its messages and those of `wire.neighbour_link`, and bridges a short loss of a connection.

    greeting   the site with the smaller name opens the connection and names the epoch of the link (`Hello`). The other
               one answers (`Welcome`). Then both sides send everything that they advertise
    restart    the epoch contains the number of starts of the coordinator, which is stored: a new process has a higher
               one, and its neighbour replaces the former link
    loss       a link that returns within `_GRACE_S` is replaced, and routes over it stay: the neighbour advertises all
               its flows again and then sends `Advertised`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.coordinator import overlay_messages as overlay
from tocsin.coordinator.effects import CloseNeighbour, SendToNeighbour
from tocsin.coordinator.overlay_head import OverlayHead
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import neighbour_link as wire
from tocsin.wire.site_link import NeighbourAccess

_GRACE_S = 0.3
"""How long a lost connection may take to return before the overlay takes another route."""
_LINKS_PER_RUN = 1_000_000


@dataclass(slots=True)
class Neighbour:
    access: NeighbourAccess
    connection: int | None = None
    """The connection that has been greeted."""
    link: int = 0
    """The epoch of the last link."""
    run: int = 0
    """The last known run of its coordinator."""
    visits: bool = False
    """It knows the messages of offloading between sites."""
    restarts: int = 0
    since_s: float | None = None
    """Since when the link is up, or down."""
    lost_s: float | None = None
    """When the connection was lost, while the overlay does not know it."""


class NeighbourLinks:
    def __init__(self, site: str, run: int, neighbours: Iterable[NeighbourAccess]) -> None:
        self.site = site
        self.run = run
        self.head = OverlayHead(BrokerId(site), run)
        self.neighbours = {access.site: Neighbour(access) for access in neighbours}
        self.rejections: Counter[str] = Counter()
        """Events that the overlay has rejected, by code."""
        self.kept: dict[TopicName, wire.Kept | None] = {}
        """How neighbours keep topics that this site does not have yet."""
        self._links = run * _LINKS_PER_RUN

    def opened(self, turn: Turn, site: str, connection: int) -> None:
        """This site has opened a connection to a neighbour."""
        self._links += 1
        turn.do(SendToNeighbour(connection, wire.Hello(self.site, self._links, self.run, visits=True)))

    def closed(self, turn: Turn, site: str, connection: int, silent: bool) -> None:
        """A connection has ended. If it was silent, the time for its return is over too."""
        neighbour = self.neighbours.get(site)
        if neighbour is not None and neighbour.connection == connection:
            lost_s = turn.now_s - _GRACE_S if silent else turn.now_s
            neighbour.connection, neighbour.lost_s, neighbour.since_s = None, lost_s, turn.now_s
            turn.note("a neighbouring site is lost", "warning", site=site)

    def check(self, turn: Turn) -> list[overlay.Effect]:
        """Called at every tick and end of a connection: remove links that have not returned."""
        decided: list[overlay.Effect] = []
        for site, neighbour in self.neighbours.items():
            if neighbour.lost_s is not None and turn.now_s - neighbour.lost_s >= _GRACE_S:
                neighbour.lost_s = None
                decided += self.happened(turn, overlay.NeighbourLost(BrokerId(site), neighbour.link))
        return decided

    def is_open(self, site: str, connection: int) -> bool:
        """True if this is the present connection to a neighbour, and it has been greeted."""
        neighbour = self.neighbours.get(site)
        return neighbour is not None and neighbour.connection == connection

    def reject(self, turn: Turn, code: overlay.OverlayCode, detail: str) -> None:
        """A message of a neighbour changes nothing."""
        self.rejections[code] += 1
        turn.note("the overlay rejects an event", "debug", code=str(code), detail=detail)

    def received(self, turn: Turn, site: str, connection: int, message: wire.FromNeighbour) -> list[overlay.Effect]:
        neighbour = self.neighbours.get(site)
        if neighbour is None:
            turn.do(CloseNeighbour(connection, f"{site} is not a neighbour of {self.site}"))
            return []
        if isinstance(message, wire.Hello | wire.Welcome):
            return self._greet(turn, neighbour, connection, message)
        if isinstance(message, wire.Advertised) and neighbour.connection == connection:
            return self.happened(turn, overlay.NeighbourAdvertised(BrokerId(site), neighbour.link))
        translated = _from_wire(message)
        if translated is None or neighbour.connection != connection:
            return []  # a former connection
        return self.happened(turn, overlay.HeadMessageReceived(BrokerId(site), neighbour.link, translated))

    def _greet(
        self, turn: Turn, neighbour: Neighbour, connection: int, message: wire.Hello | wire.Welcome
    ) -> list[overlay.Effect]:
        site = neighbour.access.site
        if message.site != site or (isinstance(message, wire.Welcome) and message.link > self._links):
            turn.do(CloseNeighbour(connection, f"expected the site {site}"))
            return []
        if message.link <= self.head.links.get(BrokerId(site), -1):
            turn.do(CloseNeighbour(connection, "a later link is open"))
            return []
        if neighbour.run and message.run != neighbour.run:
            neighbour.restarts += 1
            turn.note("the coordinator of a neighbouring site has restarted", site=site, run=message.run)
        if neighbour.connection is not None:
            turn.do(CloseNeighbour(neighbour.connection, "a later link is open"))
        neighbour.connection, neighbour.link, neighbour.run = connection, message.link, message.run
        neighbour.since_s, neighbour.lost_s, neighbour.visits = turn.now_s, None, message.visits
        turn.note("a neighbouring site is linked", site=site, link=message.link)
        if isinstance(message, wire.Hello):
            turn.do(SendToNeighbour(connection, wire.Welcome(self.site, message.link, self.run, visits=True)))
        is_new = BrokerId(site) not in self.head.links
        joined = overlay.NeighbourJoined if is_new else overlay.NeighbourReturned
        decided = self.happened(turn, joined(BrokerId(site), message.link))
        turn.do(SendToNeighbour(connection, wire.Advertised()))
        return decided

    def happened(self, turn: Turn, event: overlay.Event) -> list[overlay.Effect]:
        """Report an event to the overlay, and send its messages. Returns its effects."""
        decided = self.head.handle(event)
        for effect in decided:
            if isinstance(effect, overlay.OverlayRejection):
                self.reject(turn, effect.code, effect.detail)
            elif isinstance(effect, overlay.SendToHead):
                connection = self.neighbours[effect.head].connection
                message = self._to_wire(turn, effect.message)
                if connection is not None and message is not None:
                    turn.do(SendToNeighbour(connection, message))
        return decided

    def _to_wire(self, turn: Turn, message: overlay.HeadMessage) -> wire.FromNeighbour | None:
        match message:
            case overlay.Advertise(topic, path):
                return wire.Advertise(topic, list(path), self._kept(turn, topic))
            case overlay.Withdraw(flow):
                return wire.Withdraw(flow.topic, flow.source)
            case overlay.SubscribeFlow(flow):
                return wire.SubscribeFlow(flow.topic, flow.source)
            case overlay.UnsubscribeFlow(flow):
                return wire.UnsubscribeFlow(flow.topic, flow.source)
            case overlay.Carry():
                return None  # live messages go from home to home

    def _kept(self, turn: Turn, topic: TopicName) -> wire.Kept | None:
        record = turn.registry.topics.topics.get(topic)
        if record is None:
            return self.kept.get(topic)
        if record.log is None:
            return None
        keep = record.log.persistence
        return wire.Kept(keep.replicas, keep.quorum, keep.retain_bytes, keep.retain_s)


def _from_wire(message: wire.FromNeighbour) -> overlay.HeadMessage | None:
    match message:
        case wire.Advertise(topic, path):
            return overlay.Advertise(topic, tuple(map(BrokerId, path)))
        case wire.Withdraw(topic, source):
            return overlay.Withdraw(overlay.Flow(topic, BrokerId(source)))
        case wire.SubscribeFlow(topic, source):
            return overlay.SubscribeFlow(overlay.Flow(topic, BrokerId(source)))
        case wire.UnsubscribeFlow(topic, source):
            return overlay.UnsubscribeFlow(overlay.Flow(topic, BrokerId(source)))
        case _:
            return None
