"""The rate limit filter of a publisher: a token bucket without a clock [ePEER §5.2.1].

The publisher's library asks `admit(now_s)` before it builds a message; what is not admitted is discarded there, where
it has cost nothing yet. The head sets the rate. A bucket is a value: asking gives the answer and the bucket afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RateLimit:
    rate_per_s: float = math.inf
    """Messages per second; infinite: no limit, 0: stop."""
    burst: float = 1.0
    """Messages that may go at once after a silence. The thesis compares a measured rate with the limit, which admits a
    burst as long as its measuring window; one second's worth is the same for limits above 1/s."""
    tokens: float = 1.0
    at_s: float = 0.0

    @classmethod
    def of(cls, rate_per_s: float, now_s: float) -> RateLimit:
        """A bucket of one second's worth, full."""
        if not rate_per_s >= 0.0:
            raise ValueError(f"a rate is at least 0 messages per second, not {rate_per_s}")
        burst = max(1.0, rate_per_s) if rate_per_s > 0.0 else 0.0
        return cls(rate_per_s, burst, burst, now_s)

    def admit(self, now_s: float) -> tuple[bool, RateLimit]:
        """Whether a message may go now. A clock that steps back gives nothing and takes nothing."""
        if math.isinf(self.rate_per_s):
            return True, self
        filled = self.saved(now_s)
        at_s = max(now_s, self.at_s)
        # Sums of floats: a token that is complete but for the last bits is complete.
        if filled >= 1.0 - 1e-9:
            return True, replace(self, tokens=max(0.0, filled - 1.0), at_s=at_s)
        return False, replace(self, tokens=filled, at_s=at_s)

    def limited_to(self, rate_per_s: float, now_s: float) -> RateLimit:
        """Another rate from now on. What had been saved up is kept as far as the new bucket holds it: raising a limit
        grants no burst, lowering it takes the old one away."""
        fresh = RateLimit.of(rate_per_s, now_s)
        if math.isinf(self.rate_per_s) or math.isinf(rate_per_s):
            return fresh
        return replace(fresh, tokens=min(self.saved(now_s), fresh.burst))

    def saved(self, now_s: float) -> float:
        """Tokens at `now_s`."""
        return min(self.burst, self.tokens + self.rate_per_s * max(0.0, now_s - self.at_s))
