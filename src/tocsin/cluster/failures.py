"""Failed executions: finds the subscriptions or records that make a channel's query fail.

One Spark job runs the query for all subscriptions and all NEW records, so one bad value fails it for all. The search
repeats the job with parts of the input and discards the results. `FailureSearch` decides, without Spark:

- If new subscriptions fail and the others do not, those subscriptions are at fault (`cluster.spark.culprits`).
- Else it bisects the NEW records down to one that fails, and then looks for the subscriptions that fail with it. They
  are at fault if they are few and never had a result. Otherwise the record is at fault: it becomes a dead letter, and
  the execution passes it over.
- If the query fails without any NEW record, or only for all of them together, nothing is blamed and the execution is
  retried later.

After `SEARCH_S` the search stops at larger parts, so that one bad value does not delay the others for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

SEARCH_S = 30.0
"""The time after which the search no longer looks for single records."""
LATE_PARTS = 16
"""After `SEARCH_S` the records are cut into this many parts, and those that fail are passed over as a whole."""
MOST_SUBSCRIPTIONS = 50
"""More subscriptions than this that fail with one record mean that the record is at fault."""
STRIKES = 3
"""A subscription that never had a result and fails alone with this many records is at fault itself."""
MOST_TOGETHER = 100
"""The most records that are passed over because the query fails for them only together."""

Records = Mapping[str, pa.Table]
"""The NEW records of each dataset that the query reads as NEW, by the name in the query."""
Fails = Callable[[int, int, Records], str | None]
"""(first subscription, last subscription, records) → Spark's reason, or None if the query succeeds."""


class DeadRecords(NamedTuple):
    dataset: str
    """The name in the query."""
    rows: pa.Table
    reason: str


@dataclass(slots=True)
class FailureSearch:
    fails: Fails
    refuse: Callable[[Mapping[int, str]], None]
    """Ends subscriptions by number, with the reason. Called as soon as they are found."""
    had_results: Callable[[Sequence[int]], bool]
    """Whether one of these subscriptions has ever had a result."""
    clock_s: Callable[[], float]
    numbers: list[int]
    """The subscriptions, in order."""
    records: dict[str, pa.Table]
    strikes: Counter[int] = field(default_factory=Counter)
    """How many records each subscription was blamed for, over all searches."""
    dead: list[DeadRecords] = field(default_factory=list)
    _until_s: float = 0.0

    def run(self) -> bool:
        """Find what is at fault. Afterwards `records` are those to execute with, and `dead` those passed over.

        Returns False if nothing is at fault.
        """
        self._until_s = self.clock_s() + SEARCH_S
        if not self.numbers or self._fails({name: rows.slice(0, 0) for name, rows in self.records.items()}) is not None:
            return False
        while self.numbers and self._fails(self.records) is not None:
            found = self._failing_part()
            if self._is_late():
                return self._set_failing_parts_aside()
            if found is None:
                return False
            self._judge(*found)
        return True

    def _set_failing_parts_aside(self) -> bool:
        """Pass over whole parts that fail, because the time for a finer search is over."""
        for name, rows in list(self.records.items()):
            if not rows.num_rows or self._fails(self._with(name, rows.slice(0, 0))) is not None:
                continue
            size = max(1, -(-rows.num_rows // LATE_PARTS))
            kept = []
            for part in (rows.slice(start, size) for start in range(0, rows.num_rows, size)):
                reason = self._fails(self._with(name, part))
                if reason is None:
                    kept.append(part)
                else:
                    self.dead.append(DeadRecords(name, part, reason))
            self.records[name] = pa.concat_tables([rows.slice(0, 0), *kept])
        return self._fails(self.records) is None

    def _fails(self, records: Records) -> str | None:
        return self.fails(self.numbers[0], self.numbers[-1], records)

    def _with(self, name: str, rows: pa.Table) -> Records:
        """The records with other rows of one dataset."""
        return {**self.records, name: rows}

    def _failing_part(self) -> tuple[str, int, int, str] | None:
        """(dataset, first row, row after the last, reason) of a part as small as can be found in time."""
        for name, rows in self.records.items():
            if rows.num_rows and self._fails(self._with(name, rows.slice(0, 0))) is None:
                return self._bisect(name, rows)
        return None

    def _bisect(self, name: str, rows: pa.Table) -> tuple[str, int, int, str] | None:
        start, end, reason = 0, rows.num_rows, ""
        while end - start > 1 and not self._is_late():
            middle = (start + end) // 2
            halves = ((start, middle), (middle, end))
            for first, last in halves:
                failed = self._fails(self._with(name, rows.slice(first, last - first)))
                if failed is not None:
                    start, end, reason = first, last, failed
                    break
            else:
                if end - start > MOST_TOGETHER:
                    return None
                break
        reason = reason or self._fails(self._with(name, rows.slice(start, end - start))) or "the query fails"
        return name, start, end, reason

    def _is_late(self) -> bool:
        return self.clock_s() > self._until_s

    def _judge(self, name: str, start: int, end: int, reason: str) -> None:
        """Blame a part of the records, or the subscriptions that fail with it."""
        rows = self.records[name]
        part = self._with(name, rows.slice(start, end - start))
        suspects = self._failing_subscriptions(part)
        if suspects and not self.had_results(list(suspects)):
            is_few = 2 * len(suspects) <= len(self.numbers)
            guilty = {number: why for number, why in suspects.items() if is_few or self.strikes[number] + 1 >= STRIKES}
            if guilty:
                self.refuse(guilty)
                self.numbers = [number for number in self.numbers if number not in guilty]
                return
            self.strikes.update(suspects.keys())
        self.dead.append(DeadRecords(name, rows.slice(start, end - start), reason))
        self.records[name] = pa.concat_tables([rows.slice(0, start), rows.slice(end)])

    def _failing_subscriptions(self, part: Records) -> dict[int, str]:
        """The subscriptions that fail with these records, with the reason; empty if they are too many to be guilty."""
        numbers = self.numbers
        samples = {numbers[0], numbers[len(numbers) // 2], numbers[-1]}
        if len(samples) == 3 and all(self.fails(number, number, part) is not None for number in samples):
            return {}
        reasons: dict[int, str] = {}
        pending = [(0, len(numbers))]
        while pending:
            start, end = pending.pop()
            reason = self.fails(numbers[start], numbers[end - 1], part)
            if reason is None:
                continue
            if end - start == 1:
                reasons[numbers[start]] = reason
            else:
                middle = (start + end) // 2
                pending += [(middle, end), (start, middle)]
            if len(reasons) > MOST_SUBSCRIPTIONS or self._is_late():
                return {}
        return reasons
