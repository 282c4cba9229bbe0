"""Load detection and load analysis: from measurements to load states and bundles [ePEER §4.4.1, §4.4.3.1].

Pure. The driver measures each second and sends reports to the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.model.ids import SubscriberId
from tocsin.policies.sites.types import Bundle, Load, LoadState, LoadThresholds, Metric, PublisherId, Reach, Utilisation
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
) -> Bundle:
    """A topic's subscribers at one edge; `local` and `remote` describe where its publishers are."""
    bytes_per_s = rate_per_s * size_bytes
    load = Load(bytes_per_s, bytes_per_s * len(subscribers), rate_per_s)
    return Bundle(topic, delay_s, reach(local, remote), load, tuple(subscribers), (bytes_per_s,) * len(subscribers))


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
