"""Load detection: from measurements to a load state [ePEER §4.4.1].

Pure: a window of measurements goes in and comes out. Measuring each second and telling the head is the driver's
business.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.policies.sites.offload_types import Load, LoadState, Metric, Thresholds, Utilisation

WEIGHTS = (0.3, 0.7)
"""Of the measurement before and the latest one, N = 2 [ePEER §4.4.1.1]."""


@dataclass(frozen=True, slots=True)
class Window:
    """The latest measurements of one broker, oldest first.

    The thesis' average is Σ w·v / N, which with weights that add up to 1 would halve every utilisation; the division
    is by the weights' sum instead, which also serves a window that is not yet full.
    """

    measured: tuple[Load, ...] = ()

    def with_(self, load: Load, weights: tuple[float, ...] = WEIGHTS) -> Window:
        return Window((*self.measured, load)[-len(weights) :])

    def average(self, weights: tuple[float, ...] = WEIGHTS) -> Load:
        if not self.measured:
            return Load()
        if len(self.measured) == 1:
            return self.measured[0]
        mine = weights[-len(self.measured) :]
        whole = sum(mine)
        parts = zip(*self.measured, strict=True)
        return Load(*(sum(w * v for w, v in zip(mine, values, strict=True)) / whole for values in parts))


def state_of(used: Utilisation, thresholds: Thresholds) -> LoadState:
    """[ePEER table 3-1]: the worst metric decides. BUSY is not measured: who takes part in an offloading is."""
    worst = max(used)
    if worst > thresholds.high:
        return LoadState.OVERLOAD
    return LoadState.LOW if worst < thresholds.low else LoadState.HIGH


def overloaded_metrics(used: Utilisation, thresholds: Thresholds) -> tuple[Metric, ...]:
    return tuple(metric for metric in Metric if used.of(metric) > thresholds.high)


def site_state(states: tuple[LoadState, ...]) -> LoadState:
    """Of all edges together: LOW while any edge is LOW [ePEER §4.4.1.3]. BUSY edges say nothing either way, unless all
    are."""
    settled = [state for state in states if state is not LoadState.BUSY]
    return min(settled, default=LoadState.BUSY)
