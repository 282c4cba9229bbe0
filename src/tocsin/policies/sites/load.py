"""Load detection and load analysis: from measurements to load states and bundles [ePEER §4.4.1, §4.4.3.1].

Pure. The driver measures each second and sends reports to the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.types import (
    NO_LOAD,
    Bundle,
    Load,
    LoadState,
    LoadThresholds,
    Metric,
    PublisherId,
    Reach,
    Utilisation,
    utilisation,
)
from tocsin.policies.topics.types import TopicName

WEIGHTS = (0.3, 0.7)
"""Weights of the previous and the latest measurement, N = 2 [ePEER §4.4.1.1]."""


@dataclass(frozen=True, slots=True)
class Window:
    """The latest measurements of one broker, oldest first.

    The thesis' average is Σ w·v / N. With weights that sum to 1, that would halve every utilisation. We divide by the
    sum of the weights instead, which also works for a window that is not yet full.
    """

    measured: tuple[Load, ...] = ()

    def with_(self, load: Load, weights: tuple[float, ...] = WEIGHTS) -> Window:
        return Window((*self.measured, load)[-len(weights) :])

    def average(self, weights: tuple[float, ...] = WEIGHTS) -> Load:
        if not self.measured:
            return Load()
        if len(self.measured) == 1:
            return self.measured[0]
        used = weights[-len(self.measured) :]
        whole = sum(used)
        parts = zip(*self.measured, strict=True)
        return Load(*(sum(w * v for w, v in zip(used, values, strict=True)) / whole for values in parts))


def state_of(used: Utilisation, thresholds: LoadThresholds) -> LoadState:
    """The state by the highest metric [ePEER table 3-1]. Never BUSY: a broker is BUSY while it offloads or accepts."""
    worst = max(used)
    if worst > thresholds.high:
        return LoadState.OVERLOAD
    return LoadState.LOW if worst < thresholds.low else LoadState.HIGH


def overloaded_metrics(used: Utilisation, thresholds: LoadThresholds) -> tuple[Metric, ...]:
    return tuple(metric for metric in Metric if used.of(metric) > thresholds.high)


class LoadStates:
    """The load states of a site's brokers [ePEER figure 4-12].

    LOW, HIGH and OVERLOAD follow from the averages of the measurements, in any order. A broker is BUSY from the start
    of an offloading that it takes part in to its end; `OffloadMigrations` ends each one, by confirmation or time-out,
    with a `LeaveBusy`. Measurements during BUSY belong to a changing load, so a broker leaves BUSY with a new one.
    """

    def __init__(self, thresholds: LoadThresholds) -> None:
        self._thresholds = thresholds
        self._windows: dict[BrokerId, Window] = {}
        self._busy: set[BrokerId] = set()

    def measure(self, broker: BrokerId, load: Load) -> None:
        """The load of the second that ends."""
        self._windows[broker] = self._windows.get(broker, Window()).with_(load)

    def average(self, broker: BrokerId) -> Load:
        """The averaged load; no load before the first measurement."""
        return self._windows.get(broker, Window()).average()

    def state(self, broker: BrokerId, capacity: Load) -> LoadState:
        if broker in self._busy:
            return LoadState.BUSY
        return state_of(utilisation(self.average(broker), capacity), self._thresholds)

    def enter_busy(self, brokers: Iterable[BrokerId]) -> None:
        self._busy.update(brokers)

    def leave_busy(self, broker: BrokerId, load: Load) -> None:
        """Return to the state of `load`, measured now: without a measurement the broker would seem LOW."""
        self._busy.discard(broker)
        self._windows[broker] = Window().with_(load)


class LoadMeter:
    """The counters of one broker, per topic: bytes received, bytes sent, messages matched.

    The core of live sites to come: a broker's process counts, and `take` gives the loads of which Ui, Uo and Um are
    computed each second. No process uses it yet.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._counts: dict[TopicName, Load] = {}

    def count(self, topic: TopicName, received_bytes: int = 0, sent_bytes: int = 0, matched: int = 0) -> None:
        self._counts[topic] = self._counts.get(topic, NO_LOAD).plus(Load(received_bytes, sent_bytes, matched))

    def take(self, now_s: float) -> dict[TopicName, Load]:
        """The load of each topic since the last call, per second; empty if no time has passed."""
        passed_s = now_s - self._since_s
        if passed_s <= 0.0:
            return {}
        loads = {topic: Load(*(part / passed_s for part in counts)) for topic, counts in self._counts.items()}
        self._since_s, self._counts = now_s, {}
        return loads


# Load analysis: the cost of a topic's clients for a broker [ePEER tables 4-2 and 4-3]. A topic costs an edge its input
# and matching once, and its output once per subscriber. It costs a head its input per publisher, and its output once
# per edge or neighbouring head that receives the topic.


def reach(local: bool, remote: bool) -> Reach:
    """The reach of a topic: where the counterparts of its clients are."""
    if local:
        return Reach.BOTH if remote else Reach.LOCAL
    return Reach.REMOTE if remote else Reach.NONE


def subscriber_bundle(
    topic: TopicName,
    delay_s: float,
    rate_per_s: float,
    size_bytes: float,
    subscribers: Sequence[SubscriberId],
    *,
    local: bool = True,
    remote: bool = False,
    matched_each: bool = False,
) -> Bundle:
    """A topic's subscribers at one edge; `local` and `remote` describe where its publishers are. `matched_each`: the
    edge matches a message once per subscriber instead of once for all of them."""
    bytes_per_s, count = rate_per_s * size_bytes, len(subscribers)
    load = Load(bytes_per_s, bytes_per_s * count, rate_per_s * (count if matched_each else 1))
    sent, each = (bytes_per_s,) * count, rate_per_s if matched_each else 0.0
    return Bundle(topic, delay_s, reach(local, remote), load, tuple(subscribers), sent, each)


def publisher_bundle(
    topic: TopicName,
    delay_s: float,
    size_bytes: float,
    publishers: Sequence[tuple[PublisherId, float]],
    copies: int,
    *,
    local: bool,
    remote: bool,
) -> Bundle:
    """A topic's publishers, each with its rate per second, at one head, which forwards `copies` of each message."""
    bytes_per_s = tuple(rate * size_bytes for _, rate in publishers)
    load = Load(sum(bytes_per_s), copies * sum(bytes_per_s), 0.0)
    names = tuple(publisher for publisher, _ in publishers)
    return Bundle(topic, delay_s, reach(local, remote), load, names, bytes_per_s)
