"""Moving averages of traffic: λ of a backend subscription, and the incoming and outgoing rate of a broker [BAD §6.1.2].

The paper uses moving averages "to avoid instant peaks" and gives no formula. Ours is exponential with one time
constant: a plain window would have to store every arrival of the last minute. Brokers and the simulated brokers of
`sim.balance` use the same class, so a simulation has the errors of the live estimate.

A new average has measured only a part of its window. `share` is that part: 0 at the beginning, 1 - 1/e after one time
constant. Without it every subscription would look quiet at the broker that a subscriber has just moved to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WINDOW_S = 60.0
"""Default time constant: an arrival this long ago counts for 1/e."""
REPORT_SHARE = 0.05
"""A rate is reported again when it, or its share, has changed by more than this."""
MEASURED_SHARE = 0.25
"""The least share at which the coordinator uses an estimate without a former rate. With less, one result more or less
may double it."""
_LEAST_PER_S = 1e-6


@dataclass(slots=True)
class MovingAverage:
    """A decaying sum of amounts, per second, since `began_s`."""

    window_s: float = WINDOW_S
    began_s: float = 0.0
    value_per_s: float = 0.0
    at_s: float = 0.0
    reported_per_s: float | None = None
    """The value of the last report; None before the first."""
    reported_share: float = 0.0
    announced: float = 0.0
    """An amount that `restart` has counted already, although it has yet to arrive."""

    def add(self, amount: float, now_s: float) -> None:
        counted = min(amount, self.announced)
        self.announced -= counted
        self.value_per_s = self.now(now_s) + (amount - counted) / self.window_s
        self.at_s = max(now_s, self.at_s)

    def now(self, now_s: float) -> float:
        """The sum of the amounts since the beginning; too small by the factor `share` while the average is young."""
        if self.value_per_s == 0.0:
            return 0.0
        value = self.value_per_s * math.exp(-max(0.0, now_s - self.at_s) / self.window_s)
        return value if value > _LEAST_PER_S else 0.0

    def share(self, now_s: float) -> float:
        """The share of the average that has been measured, from 0 to 1."""
        return -math.expm1(-max(0.0, now_s - self.began_s) / self.window_s)

    def estimate(self, now_s: float) -> float:
        """The average, corrected for its youth. Before `MEASURED_SHARE` the correction is limited."""
        return self.now(now_s) / max(self.share(now_s), MEASURED_SHARE)

    def usual(self, period_s: float, now_s: float) -> float:
        """The mean rate if amounts come once a period. Unlike the estimate it does not fall while none comes."""
        share = max(self.share(now_s), MEASURED_SHARE)
        return self.value_per_s / share * mean_after(period_s, self.window_s)

    def cover_from(self, at_s: float) -> None:
        """Set the start of the time that the first amount covers: a channel's first results cover its whole period."""
        if self.value_per_s == 0.0:
            self.began_s = min(self.began_s, at_s)

    def restart(self, rate_per_s: float, announced: float, now_s: float) -> None:
        """Start again at this rate. It includes an amount that is announced and has yet to arrive."""
        self.value_per_s, self.announced = rate_per_s * self.share(now_s), announced
        self.at_s = max(now_s, self.at_s)

    def take_changed(self, now_s: float) -> tuple[float, float] | None:
        """Return (value, share) and mark them as reported; None if both are close to the last report."""
        value, share = self.now(now_s), self.share(now_s)
        reported = self.reported_per_s
        if (
            reported is not None
            and abs(value - reported) <= REPORT_SHARE * reported
            and share - self.reported_share <= REPORT_SHARE
        ):
            return None
        self.reported_per_s, self.reported_share = value, share
        return value, share

    def report_again(self) -> None:
        """Forget the last report: the coordinator may be a new process that knows no rate."""
        self.reported_per_s = None


def merged_rate(value_per_s: float, share: float, former_per_s: float | None) -> float:
    """λ from one broker's measurement and the rate known before that broker began to measure; NaN if unknown.

    With a former rate the result is what one uninterrupted average would show: the part of it that the new average has
    not measured yet is still there.
    """
    if former_per_s is not None:
        return value_per_s + (1.0 - share) * former_per_s
    return value_per_s / share if share >= MEASURED_SHARE else math.nan


# -- surges ------------------------------------------------------------------------------------------------------------

SURGE_FACTOR = 3.0
"""Ours: a channel surges when its traffic is this many times what the averages of its subscriptions promise."""
SURGE_LOAD_SHARE = 0.5
"""Ours: the least rise of a channel's traffic that matters, as a share of the whole broker's load."""
SURGE_SHARE = 0.5
"""The least share of an average that a burst is compared with: a younger average says too little about the usual."""
SURGING_SUBSCRIPTION = 2.0
"""In a channel that surges, the average of a subscription starts again if its rate is this many times the average."""


def is_surge(burst_per_s: float, usual_per_s: float, load_per_s: float) -> bool:
    """True if a channel's traffic at one broker is far above the usual, by a large part of the broker's load."""
    return burst_per_s > SURGE_FACTOR * usual_per_s and burst_per_s - usual_per_s > SURGE_LOAD_SHARE * load_per_s


def mean_after(period_s: float, window_s: float) -> float:
    """The factor from an average that has just got the amount of a whole period to the mean rate.

    An average of periodic amounts is highest just after one and lowest just before the next.
    """
    decays = period_s / window_s
    return -math.expm1(-decays) / decays if decays > 0.0 else 1.0
