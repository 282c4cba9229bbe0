"""The matching budget of a broker: the configured number of messages per second, before their fan-out.

A home's budget is spent on the messages that publishers send, an edge's on those that it relays. Messages wait in the
order in which they came. The queue is bounded, and nothing in it is dropped. When it is full, its caller stops taking
messages: a home refuses them for a while (`backlogged`), and an edge stops reading from the home, for which it is a
slow receiver then. So the home's rules for slow receivers hold: a persistent topic loses nothing, and a volatile one
reports a gap. Dropping messages here would need a second way to report gaps, and would lose messages of persistent
topics.

`TopicCapacity` drives it; it exists only while matching is limited.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tocsin.policies.sites.shaping import Shaper
from tocsin.runtime.broker.pace import CallLater, Pace

MOST_S = 5.0
"""The queue is full with so many seconds of the rate. The coordinator needs two or three seconds to see an overload and
to relieve the broker; a longer queue would only make messages older."""
MOST_BYTES = 8 << 20
"""The queue is also full with this many bytes, as `topic_uncommitted_bytes` is for messages that wait for replicas."""
_Waiting = tuple[Callable[[], None], int, int]


class Matching:
    def __init__(self, rate_per_s: float, now_s: Callable[[], float], call_later: CallLater) -> None:
        self.waiting_messages = 0
        self.waiting_bytes = 0
        self.on_room: dict[object, Callable[[], None]] = {}
        """Called, and removed, when the queue is not full any more."""
        self._now_s = now_s
        self._shaper: Shaper[_Waiting] = Shaper(rate_per_s, now_s())
        self._pace = Pace(self._shaper, self._deliver, now_s, call_later)

    @property
    def is_full(self) -> bool:
        return self.waiting_bytes > MOST_BYTES or self.waiting_messages > self._shaper.rate_per_s * MOST_S

    @property
    def delay_s(self) -> float:
        """How long a message that comes now will wait."""
        rate_per_s = self._shaper.rate_per_s
        return 0.0 if not self.waiting_messages or math.isinf(rate_per_s) else self.waiting_messages / rate_per_s

    def offer(self, messages: int, size_bytes: int, deliver: Callable[[], None]) -> bool:
        """Call `deliver` for these messages, now or later. Returns True if that was done."""
        self.waiting_messages += messages
        self.waiting_bytes += size_bytes
        self._deliver(self._shaper.offer((deliver, messages, size_bytes), messages, self._now_s()))
        self._pace.schedule()
        return not len(self._shaper)

    def set_rate(self, rate_per_s: float) -> None:
        """Change the rate now. Messages that wait keep their order."""
        self._deliver(self._shaper.set_rate(rate_per_s, self._now_s()))
        self._pace.schedule()

    def _deliver(self, ready: list[_Waiting]) -> None:
        for deliver, messages, size_bytes in ready:
            self.waiting_messages -= messages
            self.waiting_bytes -= size_bytes
            deliver()
        if self.on_room and not self.is_full:
            waiting, self.on_room = self.on_room, {}
            for callback in waiting.values():
                callback()
