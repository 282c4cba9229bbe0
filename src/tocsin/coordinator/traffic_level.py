"""The level of the network's traffic: how far the brokers' counters are from the load model, all together.

λ of a single subscription is noisy, so it is averaged over a minute and follows a rise of traffic late, at all brokers
alike. The bytes of all brokers together are precise within seconds. The coordinator therefore takes the *shares* of
subscriptions from their averages and the *level* from the counters: it multiplies every λ by `factor`.
Balance does not depend on the level; absolute limits and the loads shown to people do (docs/decisions/0008).
"""

from __future__ import annotations

import math

WINDOW_REPORTS = 6.0
"""Ours: time constant of the comparison in reporting periods (30 s of 5 s). Shorter ones follow the ticks of channels,
longer ones follow a rise of traffic late."""
_FACTORS = (0.5, 2.0)
"""The factor stays in this range. A larger difference is a surge, which restarts the averages themselves."""


class TrafficLevel:
    def __init__(self) -> None:
        self.factor = 1.0
        """Counted ÷ modelled traffic of all brokers in the recent past."""
        self._modelled_bytes = self._counted_bytes = 0.0
        self._at_s = -math.inf

    def compare(self, modelled_bytes: float, counted_bytes: float, now_s: float, window_s: float) -> None:
        """Count what one broker transferred between two reports, beside what the model promised for that time."""
        fading = math.exp(-max(0.0, now_s - self._at_s) / window_s)
        self._at_s = max(now_s, self._at_s)
        self._modelled_bytes = fading * self._modelled_bytes + modelled_bytes
        self._counted_bytes = fading * self._counted_bytes + counted_bytes
        if self._modelled_bytes > 0.0:
            least, most = _FACTORS
            self.factor = min(most, max(least, self._counted_bytes / self._modelled_bytes))

    def restart(self) -> None:
        """Forget the comparison: a surge has restarted the averages at the announced rates."""
        self.factor, self._modelled_bytes, self._counted_bytes = 1.0, 0.0, 0.0
