"""A token bucket: the rate limit filter of a publisher [ePEER §5.2.1]. Pure and without a clock.

The publisher's library asks it before it builds a message, and discards the message at no cost if it is not admitted.
The home asks it for publishers that do not obey.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A token bucket. It is a value: `admit` returns the answer and the bucket after it."""

    rate_per_s: float = math.inf
    """Messages per second; infinite: no limit, 0: stop."""
    burst: float = 1.0
    """Messages that may follow each other at once after a pause. The thesis compares a measured rate with the limit,
    which admits a burst as long as its measuring window. One second's worth is the same for limits above 1/s."""
    tokens: float = 1.0
    at_s: float = 0.0

    @classmethod
    def of(cls, rate_per_s: float, now_s: float) -> RateLimit:
        """A full bucket of one second's worth."""
        if not rate_per_s >= 0.0:
            raise ValueError(f"a rate is at least 0 messages per second, not {rate_per_s}")
        burst = max(1.0, rate_per_s) if rate_per_s > 0.0 else 0.0
        return cls(rate_per_s, burst, burst, now_s)

    def admit(self, now_s: float) -> tuple[bool, RateLimit]:
        """Decide whether a message may be sent now. A clock that steps back adds and removes no tokens."""
        if math.isinf(self.rate_per_s):
            return True, self
        tokens = self._tokens_at(now_s)
        at_s = max(now_s, self.at_s)
        # Rounding: a token that is complete but for the last bits counts as complete.
        if tokens >= 1.0 - 1e-9:
            return True, replace(self, tokens=max(0.0, tokens - 1.0), at_s=at_s)
        return False, replace(self, tokens=tokens, at_s=at_s)

    def limited_to(self, rate_per_s: float, now_s: float) -> RateLimit:
        """The bucket with another rate. It keeps its tokens as far as the new bucket holds them: a higher limit grants
        no burst, a lower limit removes the old one."""
        fresh = RateLimit.of(rate_per_s, now_s)
        if math.isinf(self.rate_per_s) or math.isinf(rate_per_s):
            return fresh
        return replace(fresh, tokens=min(self._tokens_at(now_s), fresh.burst))

    def _tokens_at(self, now_s: float) -> float:
        return min(self.burst, self.tokens + self.rate_per_s * max(0.0, now_s - self.at_s))
