"""Receivers of this site visit a neighbour whose edge has capacity left [ePEER §4.4.4, decision 24].

`site_control` plans the move and follows it to its end. Before it may redirect the receivers, the neighbour (their
host) has to accept them, and gives each of them a token for this one topic. A receiver returns when its token expires,
its connection breaks or the host ends the visit; its own session decides that, and nothing waits for it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from tocsin.coordinator.site_exchange import SiteExchange, site_of
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites import migration
from tocsin.policies.sites.types import SiteMove
from tocsin.wire import neighbour_link as wire
from tocsin.wire.site_link import RedirectReceivers
from tocsin.wire.topic import VisitorAccess

_REFUSED_S = 3.0
"""How long an edge that refused receivers is left out of plans: later reports name its state."""


@dataclass(slots=True)
class _Request:
    site: str
    move: SiteMove
    until_s: float


class SiteVisits:
    def __init__(self, exchange: SiteExchange) -> None:
        self._exchange = exchange
        self._requests: dict[int, _Request] = {}
        self._numbers = count(1)
        self._refused_s: dict[BrokerId, float] = {}
        """Edge of a neighbour → until when it is left out."""

    def left_out(self, now_s: float) -> set[BrokerId]:
        """Edges that refused receivers lately, or have not answered a request yet."""
        self._refused_s = {broker: until_s for broker, until_s in self._refused_s.items() if until_s > now_s}
        return set(self._refused_s)

    def request(self, turn: Turn, move: SiteMove) -> None:
        """Ask the host to accept the receivers. Without a connection the offloading ends with the link."""
        where = site_of(move.target)
        assert where is not None, f"{move.target} is no broker of a neighbour"
        number = next(self._numbers)
        self._requests[number] = _Request(where[0], move, turn.now_s + turn.rules.site_offload_s)
        clients, load = [str(client) for client in move.clients], (move.accepted[0], move.accepted[1], move.accepted[2])
        token = self._exchange.links.neighbours[where[0]].access.token
        self._exchange.send(turn, where[0], wire.HostReceivers(number, move.topic, where[1], clients, load, token))

    def receive(
        self, turn: Turn, site: str, message: wire.Hosting | wire.NotHosting | wire.VisitorArrived
    ) -> list[migration.Event]:
        """An answer of the host, or a receiver that has arrived there. Returns what that means to the offloading."""
        self._requests = {number: request for number, request in self._requests.items() if request.until_s > turn.now_s}
        request = self._requests.get(message.number)
        if request is None or request.site != site:
            return []
        move = request.move
        match message:
            case wire.Hosting():
                self._redirect(turn, request, message)
                absent = [client for client in move.clients if client not in message.tokens]
                return [migration.ClientGone(client, move.topic) for client in absent]
            case wire.NotHosting(number, reason):
                del self._requests[number]
                self._refused_s[move.target] = turn.now_s + _REFUSED_S
                turn.note("a neighbour refuses receivers", site=site, topic=move.topic, reason=reason[:200])
                return [migration.ClientGone(client, move.topic) for client in move.clients]
            case wire.VisitorArrived(_, client):
                return [migration.ClientConnected(SubscriberId(client), move.topic, move.target)]

    def _redirect(self, turn: Turn, request: _Request, message: wire.Hosting) -> None:
        move = request.move
        access = {
            client: VisitorAccess(request.site, message.home, token)
            for client, token in message.tokens.items()
            if client in move.clients
        }
        order = RedirectReceivers(move.topic, list(access), move.target, message.address, access)
        if access:
            turn.send(move.source, order)
