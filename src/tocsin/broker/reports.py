"""Periodic messages of a broker: progress to sessions, heartbeats and load reports to the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.broker.effects import SendToSessions
from tocsin.broker.hosted import BackendSubscription, HostedSession, SessionId
from tocsin.broker.live_fetches import LiveFetches
from tocsin.broker.message_encoding import Encoding
from tocsin.broker.outbox import Outbox
from tocsin.broker.state import BrokerState
from tocsin.broker.surges import Surges
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.wire import link
from tocsin.wire import session as wire

_SLOTS = 16
"""Sessions get `progress` in this many groups, one group at a time, to spread the load."""


_SURGE_REPORT_S = 0.5
"""Shortest pause before a report about a surge or an overload."""
_WHOLE_SHARE = 0.98
"""An average with at least this share counts as whole: the report leaves its share out."""


class Reports:
    def __init__(self, state: BrokerState, fetches: LiveFetches, surges: Surges, outbox: Outbox) -> None:
        self._state = state
        self._fetches = fetches
        self._surges = surges
        self._outbox = outbox
        self.heartbeat_s = 5.0
        self.report_s = 5.0
        self._heartbeat_at_s = self._reported_at_s = 0.0
        self._progress_at_s = 0.0
        self._slot = 0
        self._began = False
        self._released: list[SubscriptionId] = []

    def on_backend_released(self, backend: BackendSubscription) -> None:
        """Name the subscription in the next report, if the coordinator knows a rate of this broker for it."""
        if backend.rate.reported_per_s is not None and self._outbox.connected:
            self._released.append(backend.id)

    def tick(self) -> None:
        state, now_s = self._state, self._state.now_s
        if not self._began:
            self._began = True
            state.load.begin(now_s)
        pause_s = state.limits.progress_s / _SLOTS / 2
        if now_s - self._progress_at_s >= pause_s:
            due = 1 if not self._progress_at_s else min(_SLOTS, int((now_s - self._progress_at_s) / pause_s))
            self._progress_at_s = now_s
            for _ in range(due):
                self._slot = (self._slot + 1) % _SLOTS
                self._send_progress(
                    [session for session in state.sessions.values() if session.id % _SLOTS == self._slot]
                )
        if not self._outbox.connected:
            return
        if now_s - self._heartbeat_at_s >= self.heartbeat_s:
            self._heartbeat_at_s = now_s
            frontends = sum(len(backend.frontends) for backend in state.backends.values())
            self._state.send_to_coordinator(link.Heartbeat(len(state.sessions), frontends, len(state.backends)))
        pause_s = _SURGE_REPORT_S if self._surges.unreported or self._surges.overload_unreported else self.report_s
        if now_s - self._reported_at_s >= min(pause_s, self.report_s):
            self._reported_at_s = now_s
            self._state.send_to_coordinator(self.load_report())
        self._outbox.flush()

    def on_registered(self, message: link.Registered) -> None:
        self.heartbeat_s, self.report_s = message.heartbeat_s, message.report_s
        self._heartbeat_at_s = self._reported_at_s = 0.0
        for backend in self._state.backends.values():
            backend.rate.report_again()

    def load_report(self) -> link.LoadReport:
        """[BAD §4, eq. 1–5]: incoming rate, outgoing rate, and λ of the subscriptions whose rate has changed."""
        load, now_s = self._state.load, self._state.now_s
        released, self._released = self._released, []
        rates, shares = {}, {}
        for identity, backend in self._state.backends.items():
            if (changed := backend.rate.take_changed(now_s)) is not None:
                rates[identity], share = changed
                if share < _WHOLE_SHARE:
                    shares[identity] = round(share, 3)
        delays_s = sorted(self._fetches.delays_s)
        surge, overload = self._surges.take_unreported()
        places, self._state.places = self._state.places, {}
        self._surges.forget_unused()
        return link.LoadReport(
            in_bytes_per_s=load.in_rate.estimate(now_s),
            out_bytes_per_s=load.out_rate.estimate(now_s),
            rates=rates,
            notifications_per_s=load.notification_rate.estimate(now_s),
            delivery_s_p50=_quantile(delays_s, 0.5),
            delivery_s_p95=_quantile(delays_s, 0.95),
            shares=shares,
            released=[identity for identity in released if identity not in self._state.backends],
            in_bytes=load.in_bytes,
            out_bytes=load.out_bytes,
            catch_up_bytes=load.catch_up_bytes,
            delivery_ratio=load.delivery_ratio,
            surge=surge,
            overload=overload,
            places=places,
        )

    # -- progress --------------------------------------------------------------------------------------------------

    def _send_progress(self, sessions: Sequence[HostedSession]) -> None:
        """Send `progress`. Sessions at the same positions get the same bytes."""
        groups: dict[tuple[Encoding, tuple[tuple[ChannelName, Cursor], ...]], list[SessionId]] = {}
        for session in sessions:
            if session.writable and not session.is_webhook:
                groups.setdefault((session.encoding, _positions(session)), []).append(session.id)
        for (encoding, positions), identities in groups.items():
            message = wire.Progress({name: str(cursor) for name, cursor in positions}, self._state.now_s)
            self._state.effects.append(
                SendToSessions(tuple(identities), message, self._state.encode(message, encoding))
            )


def _positions(session: HostedSession) -> tuple[tuple[ChannelName, Cursor], ...]:
    """(channel, cursor) of each channel with only live subscriptions: every result before the cursor was sent."""
    positions: dict[ChannelName, Cursor] = {}
    behind: set[ChannelName] = set()
    for frontend in session.subscriber.frontends.values():
        name = frontend.backend.channel
        if not frontend.live:
            behind.add(name)
        else:
            positions[name] = min(positions.get(name, frontend.backend.position), frontend.backend.position)
    return tuple(sorted((name, cursor) for name, cursor in positions.items() if name not in behind))


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
