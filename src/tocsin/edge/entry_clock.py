"""The event time of one stream at the node where it enters: the newest reading of each publisher.

A watermark follows the publisher that is behind, not the newest reading of all. When a publisher moves to another node,
it sends its latest readings again; they are old there, and not late, because the publisher's own time holds the
watermark back. A publisher that sends nothing for `silence_s` is left out. If all are silent, the entry is idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from tocsin.edge.hosted import IDLE_US

NEVER_S = float("inf")


class EntryClock:
    def __init__(self, silence_s: float = NEVER_S) -> None:
        self._silence_s = silence_s
        self._newest_us: dict[str, int | None] = {}
        """For each known publisher its newest reading; None before the first."""
        self._heard_s: dict[str, float] = {}
        self._waiting: Counter[str] = Counter()
        """Batches of each publisher that have arrived and are not processed."""
        self._started_s: float | None = None

    def start(self, expected: Iterable[str], silent: Collection[str], now_s: float) -> None:
        """The replay is over. Wait `silence_s` for the publishers that are expected, but not for silent ones."""
        self._started_s = now_s
        for publisher in {*expected, *self._newest_us} - {*silent}:
            self._newest_us.setdefault(publisher, None)
            self._heard_s[publisher] = now_s
        for publisher in silent:
            self._heard_s[publisher] = -NEVER_S

    def silent(self, now_s: float) -> set[str]:
        return {publisher for publisher in self._newest_us if not self._counts(publisher, now_s)}

    def _counts(self, publisher: str, now_s: float) -> bool:
        return self._waiting[publisher] > 0 or now_s < self._heard_s[publisher] + self._silence_s

    def arrive(self, publisher: str, now_s: float) -> None:
        self._newest_us.setdefault(publisher, None)
        self._heard_s[publisher] = now_s
        self._waiting[publisher] += 1

    def process(self, publisher: str, newest_us: int | None) -> None:
        self._waiting[publisher] -= 1
        before_us = self._newest_us.get(publisher)
        if newest_us is not None:
            self._newest_us[publisher] = newest_us if before_us is None else max(before_us, newest_us)

    def lowest_us(self, now_s: float, has_results: bool) -> int | None:
        """The newest reading of the publisher that is behind; None while one has yet to send; `IDLE_US` if none counts.

        Before a query has results, an entry without publishers waits `silence_s` for its first one, so that entries
        need not start at the same moment.
        """
        counted = [newest_us for publisher, newest_us in self._newest_us.items() if self._counts(publisher, now_s)]
        if counted:
            return None if None in counted else min(newest_us for newest_us in counted if newest_us is not None)
        if self._newest_us or self._started_s is None:
            return IDLE_US if self._newest_us else None
        return IDLE_US if has_results or now_s >= self._started_s + self._silence_s else None

    def deadline_s(self, now_s: float) -> float | None:
        """The next time at which a publisher becomes silent."""
        if self._silence_s == NEVER_S:
            return None
        heard_s = [self._heard_s[publisher] for publisher in self._newest_us if not self._waiting[publisher]]
        starts_s = [] if self._started_s is None else [self._started_s]
        ends_s = [at_s + self._silence_s for at_s in (*heard_s, *starts_s)]
        return min((at_s for at_s in ends_s if at_s > now_s), default=None)
