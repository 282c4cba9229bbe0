"""The limits that homes set for this client's publishers while their site is congested [ePEER §5.2.1]. Pure.

The client discards the excess before the application builds a message, and reports to the home how much the application
offers: otherwise the site could not know when everything fits again.
"""

from __future__ import annotations

from tocsin.model.ids import TopicName
from tocsin.model.rate_limit import RateLimit

_SECOND_S = 1.0


class PublishLimits:
    def __init__(self) -> None:
        self._limits: dict[TopicName, RateLimit] = {}
        self._offered: dict[TopicName, int] = {}
        """Limited topics → messages that the application offered since the last report."""
        self._since_s = 0.0

    def rate_per_s(self, topic: TopicName) -> float | None:
        """The limit in messages per second; None without a limit."""
        limit = self._limits.get(topic)
        return None if limit is None else limit.rate_per_s

    def set(self, topic: TopicName, per_s: float | None, now_s: float) -> bool:
        """Set, change or end a limit. Returns True if it is another one than before."""
        before = self._limits.get(topic)
        if per_s is None or not per_s >= 0.0:
            self._offered.pop(topic, None)
            return self._limits.pop(topic, None) is not None
        if not self._limits:
            self._since_s = now_s
        self._limits[topic] = RateLimit.of(per_s, now_s) if before is None else before.limited_to(per_s, now_s)
        return before is None or before.rate_per_s != per_s

    def may_publish(self, topic: TopicName, now_s: float) -> bool:
        """True if a message would be sent now. False counts as a message that the application discards."""
        limit = self._limits.get(topic)
        if limit is None or limit.admit(now_s)[0]:
            return True
        self._count(topic)
        return False

    def admit(self, topic: TopicName, now_s: float) -> bool:
        """Decide on a message that the application publishes."""
        limit = self._limits.get(topic)
        if limit is None:
            return True
        self._count(topic)
        admitted, self._limits[topic] = limit.admit(now_s)
        return admitted

    def _count(self, topic: TopicName) -> None:
        self._offered[topic] = self._offered.get(topic, 0) + 1

    def take_offered(self, now_s: float) -> dict[TopicName, float]:
        """Once a second: messages per second that the application offered to each limited topic."""
        passed_s = now_s - self._since_s
        if not self._limits or passed_s < _SECOND_S:
            return {}
        offered = {topic: self._offered.get(topic, 0) / passed_s for topic in self._limits}
        self._offered.clear()
        self._since_s = now_s
        return offered
