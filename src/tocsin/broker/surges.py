"""Surges: a channel's announced results are several times its average, so this broker's load is about to rise.

A moving average answers a disaster after a minute. An announcement carries the bytes of each subscription before the
broker fetches and delivers them, so bytes × receivers is the coming burst. When the burst of a channel is a multiple of
what the averages of its subscriptions promise, and the difference exceeds half of the broker's load, these averages
start again at the announced rate, and the broker reports its rates at once. The coordinator plans on them
(`Urgency.OVERLOAD`). The same happens if the burst, large or small, raises the load above the coordinator's limit
(`overload_bytes_per_s`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.broker.events import ExecutionAnnounced
from tocsin.broker.hosted import BackendSubscription
from tocsin.broker.state import BrokerState
from tocsin.model.ids import SubscriptionId
from tocsin.model.rate import SURGE_LOAD_SHARE, SURGE_SHARE, SURGING_SUBSCRIPTION, is_surge

SHORTEST_SHARE = 1 / 12
"""Least time that a rate is computed over, as a share of the averages' time constant: 5 s of 60 s. Executions of a
continuous channel are closer together; their bytes are added up until this time has passed."""


@dataclass(slots=True)
class _ChannelTraffic:
    since_s: float
    """The end of the execution up to which the traffic has been judged, by the data cluster's clock."""
    finished_s: float
    """The end of the latest announced execution."""
    execution: int
    """The number of the latest announced execution."""
    period_s: float = 0.0
    """The shortest time seen between two executions with results; 0 before the second. Executions without results for
    this broker are not announced, so a longer time says nothing about the period."""
    bytes_of: dict[SubscriptionId, int] = field(default_factory=dict)
    """Announced bytes since `since_s`."""
    coming: dict[SubscriptionId, int] = field(default_factory=dict)
    """The part of `bytes_of` that belongs to the latest execution: it has not been fetched yet."""


class Surges:
    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._channels: dict[str, _ChannelTraffic] = {}
        self._finished_s = 0.0
        """The end of the latest announced execution of any channel."""
        self.unreported = False
        """True if a surge has begun that the coordinator does not know yet."""
        self.overload_unreported = False
        """The same for a burst that raises the load above the limit."""
        self.limit_bytes_per_s = 0.0
        """The load above which the coordinator relieves a broker. 0: no limit."""

    def on_execution(self, event: ExecutionAnnounced) -> None:
        name = event.channel.lower()
        if not event.bytes_of:
            return
        traffic = self._channels.get(name)
        if traffic is None or event.finished_s < traffic.finished_s:
            # The first execution only starts the clock: the time that its results took is not known. So does the first
            # one after a step back of the data cluster's clock.
            if event.is_last_part:
                self._channels[name] = _ChannelTraffic(event.finished_s, event.finished_s, event.execution)
                self._finished_s = event.finished_s
            return
        if event.execution != traffic.execution:
            traffic.execution, traffic.coming = event.execution, {}
            gap_s = event.finished_s - traffic.finished_s
            traffic.period_s = min(gap_s, traffic.period_s or gap_s)
        began_s = self._state.now_s - traffic.period_s
        for identity, size_bytes in zip(event.subscriptions, event.bytes_of, strict=True):
            repeated_bytes = traffic.coming.get(identity, 0)  # after a reconnect, parts of an execution come again
            traffic.bytes_of[identity] = traffic.bytes_of.get(identity, 0) + size_bytes - repeated_bytes
            traffic.coming[identity] = size_bytes
            if (backend := self._state.backends.get(identity)) is not None:
                backend.rate.cover_from(began_s)
        if event.is_last_part:
            traffic.finished_s = event.finished_s
            self._judge_if_due(name, traffic)
            self._finished_s = event.finished_s

    def _judge_if_due(self, channel: str, traffic: _ChannelTraffic) -> None:
        shortest_s = SHORTEST_SHARE * self._state.limits.rate_window_s
        elapsed_s = traffic.finished_s - traffic.since_s
        if elapsed_s < shortest_s:
            return
        if traffic.bytes_of == traffic.coming:
            # The channel had no results for a while. If other channels had, it was quiet, and its results are of one
            # period. If none had, the data cluster was not there, and they are of the whole time.
            silent_s = traffic.finished_s - self._finished_s
            elapsed_s = min(elapsed_s, max(traffic.period_s, shortest_s, silent_s))
        self._judge(channel, traffic, elapsed_s)
        traffic.since_s, traffic.bytes_of = traffic.finished_s, {}

    def _judge(self, channel: str, traffic: _ChannelTraffic, elapsed_s: float) -> None:
        """Compare what the last `elapsed_s` brought with the averages of all the channel's subscriptions here.

        Subscriptions that are not measured yet count on neither side.
        """
        state, now_s = self._state, self._state.now_s
        announced_here = (state.backends.get(name) for name in traffic.bytes_of)
        backends = [backend for backend in announced_here if backend is not None and self._is_measured(backend)]
        size_of = state.load.fetched_size_of
        rates = {backend.id: size_of(traffic.bytes_of[backend.id]) / elapsed_s for backend in backends}
        burst_per_s = sum(_copies(backend) * rates[backend.id] for backend in backends)
        load_per_s = state.load.in_rate.estimate(now_s) + state.load.out_rate.estimate(now_s)
        # A broker above its limit has reported the rates that tell the coordinator so.
        may_exceed = 0.0 < load_per_s <= self.limit_bytes_per_s < load_per_s + burst_per_s
        if burst_per_s <= SURGE_LOAD_SHARE * load_per_s and not may_exceed:
            return  # the usual case; the sum below visits every subscription
        period_s = traffic.period_s
        usual_per_s = sum(
            _copies(backend) * backend.rate.usual(period_s, now_s)
            for backend in state.backends.values()
            if backend.channel.lower() == channel and self._is_measured(backend)
        )
        surge = is_surge(burst_per_s, usual_per_s, load_per_s)
        overload = may_exceed and load_per_s - usual_per_s + burst_per_s > self.limit_bytes_per_s
        if not (surge or overload):
            return
        self.unreported, self.overload_unreported = self.unreported or surge, self.overload_unreported or overload
        for backend in backends:
            # A surge leaves alone what only varies. For the limit the sum must be that of the burst.
            if overload or rates[backend.id] > SURGING_SUBSCRIPTION * backend.rate.usual(period_s, now_s):
                backend.rate.restart(rates[backend.id], size_of(traffic.coming.get(backend.id, 0)), now_s)

    def take_unreported(self) -> tuple[bool, bool]:
        """Return (surge, overload) for a report, and mark both as reported."""
        unreported = self.unreported, self.overload_unreported
        self.unreported = self.overload_unreported = False
        return unreported

    def _is_measured(self, backend: BackendSubscription) -> bool:
        return backend.rate.share(self._state.now_s) >= SURGE_SHARE

    def forget_unused(self) -> None:
        """Forget the channels without a subscription here."""
        used = {backend.channel.lower() for backend in self._state.backends.values()}
        self._channels = {name: traffic for name, traffic in self._channels.items() if name in used}


def _copies(backend: BackendSubscription) -> int:
    """How often this broker transfers a result: it fetches it once and sends it to each live session."""
    return 1 + sum(len(sessions) for sessions in backend.live.values())
