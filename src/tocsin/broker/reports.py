"""What a broker says without being asked: progress to sessions, heartbeats and load to the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.broker.effects import SendMessage, TellCoordinator
from tocsin.broker.encodings import Encoding
from tocsin.broker.entities import Session, SessionId
from tocsin.broker.fetching import Fetching
from tocsin.broker.outbox import Outbox
from tocsin.broker.world import World
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.wire import link
from tocsin.wire import session as wire

_SLOTS = 16
"""Sessions get their `progress` in this many groups, one after another: not all at once."""


class Reports:
    def __init__(self, world: World, fetching: Fetching, outbox: Outbox) -> None:
        self._world = world
        self._fetching = fetching
        self._outbox = outbox
        self.heartbeat_s = 5.0
        self.report_s = 5.0
        self._beaten_s = self._reported_s = 0.0
        self._progressed_s = 0.0
        self._slot = 0
        self._gone: list[SubscriptionId] = []

    def backend_gone(self, subscription: SubscriptionId, told_per_s: float) -> None:
        if told_per_s and self._outbox.connected:
            self._gone.append(subscription)

    def tick(self) -> None:
        world, now_s = self._world, self._world.now_s
        pause_s = world.limits.progress_s / _SLOTS / 2
        if now_s - self._progressed_s >= pause_s:
            behind = 1 if not self._progressed_s else min(_SLOTS, int((now_s - self._progressed_s) / pause_s))
            self._progressed_s = now_s
            for _ in range(behind):
                self._slot = (self._slot + 1) % _SLOTS
                self._tell_progress([one for one in world.sessions.values() if one.id % _SLOTS == self._slot])
        if self._outbox.connected and now_s - self._beaten_s >= self.heartbeat_s:
            self._beaten_s = now_s
            frontend = sum(len(backend.frontends) for backend in world.backends.values())
            self._tell(link.Heartbeat(len(world.sessions), frontend, len(world.backends)))
        if self._outbox.connected and now_s - self._reported_s >= self.report_s:
            self._reported_s = now_s
            self._tell(self.load_report())
        if self._outbox.connected:
            self._outbox.flush()

    def registered(self, message: link.Registered) -> None:
        self.heartbeat_s, self.report_s = message.heartbeat_s, message.report_s
        self._beaten_s = self._reported_s = 0.0
        for backend in self._world.backends.values():
            backend.rate.told_per_s = 0.0  # this may be another coordinator

    def _tell(self, message: link.FromBroker) -> None:
        self._world.out.append(TellCoordinator(message))

    def load_report(self) -> link.LoadReport:
        """[BAD §4, eq. 1–5]: what comes in, what goes out, and λ of the subscriptions where it changed."""
        world, now_s = self._world, self._world.now_s
        rates = dict.fromkeys(self._gone, 0.0)
        self._gone.clear()
        for identity, backend in world.backends.items():
            if (rate := backend.rate.to_tell(now_s)) is not None:
                rates[identity] = rate
        delays_s = sorted(self._fetching.delays_s)
        return link.LoadReport(
            world.load.in_rate.now(now_s), world.load.out_rate.now(now_s), rates,
            world.load.notification_rate.now(now_s), _quantile(delays_s, 0.5), _quantile(delays_s, 0.95),
        )  # fmt: skip

    # -- progress --------------------------------------------------------------------------------------------------

    def _tell_progress(self, sessions: Sequence[Session]) -> None:
        """Sessions that stand at the same positions get the same bytes."""
        groups: dict[tuple[Encoding, tuple[tuple[ChannelName, Cursor], ...]], list[SessionId]] = {}
        for session in sessions:
            if session.flowing and not session.is_webhook:
                groups.setdefault((session.encoding, _positions(session)), []).append(session.id)
        for (encoding, positions), identities in groups.items():
            message = wire.Progress({name: str(cursor) for name, cursor in positions}, self._world.now_s)
            self._world.out.append(SendMessage(tuple(identities), message, self._world.encode(message, encoding)))


def _positions(session: Session) -> tuple[tuple[ChannelName, Cursor], ...]:
    """Of each channel that no subscription of this session is behind on: everything before them has been sent."""
    found: dict[ChannelName, Cursor] = {}
    behind: set[ChannelName] = set()
    for frontend in session.subscriber.frontends.values():
        name = frontend.backend.channel
        if not frontend.live:
            behind.add(name)
        else:
            found[name] = min(found.get(name, frontend.backend.position), frontend.backend.position)
    return tuple(sorted((name, cursor) for name, cursor in found.items() if name not in behind))


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
