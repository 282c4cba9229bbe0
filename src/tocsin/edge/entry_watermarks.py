"""The watermarks of the streams that enter at one node, one for each query: which to send when.

A query's watermark follows the stream's clock, behind by the query's lateness. While kept readings are replayed it does
not move at all: a reading that was on time is never late in a replay, whatever the order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tocsin.edge.entry_clock import EntryClock
from tocsin.edge.hosted import IDLE_US
from tocsin.edge.operators.contract import BEGINNING_OF_TIME_US
from tocsin.edge.plan import QueryPlan

Watermark = tuple[QueryPlan, str, int]
"""(query, stream, watermark)."""


class EntryWatermarks:
    def __init__(
        self, plans: Mapping[str, Sequence[QueryPlan]], floors_us: Mapping[str, int], silence_s: float
    ) -> None:
        """`plans`: the queries that read each stream here."""
        self._plans = plans
        self._floors_us = floors_us
        self._clocks = {stream: EntryClock(silence_s) for stream in plans}
        self._reached_us: dict[tuple[str, str], int] = {}
        """By (query, stream): the highest watermark so far."""
        self._idle: set[tuple[str, str]] = set()
        self._promised_us: dict[str, int] = {}
        self._expected: Mapping[str, Iterable[str]] = {}
        self._silent: Mapping[str, Collection[str]] = {}
        self._is_replaying = False

    def plans_of(self, stream: str) -> Sequence[QueryPlan]:
        return self._plans.get(stream, ())

    def begin_replay(self, expected: Mapping[str, Iterable[str]], silent: Mapping[str, Collection[str]]) -> None:
        """Hold all watermarks.

        `expected` gives the publishers of each stream whose readings enter here, `silent` those that had already
        stopped to send.
        """
        self._expected, self._silent = expected, silent
        self._is_replaying = True

    def finish_replay(self, now_s: float) -> None:
        self._is_replaying = False
        for stream, clock in self._clocks.items():
            clock.start(self._expected.get(stream, ()), self._silent.get(stream, ()), now_s)

    def silent(self, now_s: float) -> Mapping[str, Collection[str]]:
        """The publishers of each stream that hold no watermark back any more."""
        if self._is_replaying:
            return self._silent
        return {stream: clock.silent(now_s) for stream, clock in self._clocks.items()}

    def arrive(self, stream: str, publisher: str, now_s: float) -> None:
        self._clocks[stream].arrive(publisher, now_s)

    def process(self, stream: str, publisher: str, newest_us: int | None) -> None:
        self._clocks[stream].process(publisher, newest_us)

    def promise(self, stream: str, watermark_us: int) -> None:
        """The driver promises that no older reading will enter, and goes on to promise."""
        self._promised_us[stream] = max(self._promised_us.get(stream, watermark_us), watermark_us)

    def deadline_s(self, now_s: float) -> float | None:
        deadlines_s = [clock.deadline_s(now_s) for clock in self._clocks.values()]
        return min((at_s for at_s in deadlines_s if at_s is not None), default=None)

    def wake(self, stream: str) -> list[Watermark]:
        """An idle entry has readings again: the watermarks to send before them."""
        woken = [plan for plan in self.plans_of(stream) if (plan.name, stream) in self._idle]
        self._idle -= {(plan.name, stream) for plan in woken}
        return [(plan, stream, self._reached_us.get((plan.name, stream), BEGINNING_OF_TIME_US)) for plan in woken]

    def changed(self, streams: Iterable[str] | None, now_s: float) -> list[Watermark]:
        """The watermarks that have changed, of these streams or of all."""
        watermarks: list[Watermark] = []
        if self._is_replaying:
            return watermarks
        for stream in self._plans if streams is None else streams:
            for plan in self.plans_of(stream):
                watermark_us = self._watermark_us(plan, stream, now_s)
                place = (plan.name, stream)
                if watermark_us == IDLE_US and place not in self._idle:
                    self._idle.add(place)
                    watermarks.append((plan, stream, IDLE_US))
                elif watermark_us is not None and watermark_us != IDLE_US:
                    before_us = self._reached_us.get(place, BEGINNING_OF_TIME_US)
                    if watermark_us > before_us:
                        self._idle.discard(place)
                        self._reached_us[place] = watermark_us
                        watermarks.append((plan, stream, watermark_us))
        return watermarks

    def _watermark_us(self, plan: QueryPlan, stream: str, now_s: float) -> int | None:
        promised_us = self._promised_us.get(stream)
        lowest_us = self._clocks[stream].lowest_us(now_s, plan.name in self._floors_us)
        if lowest_us is None or lowest_us == IDLE_US:
            return lowest_us if promised_us is None else promised_us
        behind_us = lowest_us - plan.lateness_us
        return behind_us if promised_us is None else max(behind_us, promised_us)
