"""Failed executions: finds the subscriptions or records that make a channel's query fail.

One Spark job runs the query for all subscriptions and all NEW records, so one bad value fails it for all. The search
repeats the job with parts of the input and discards the results. `FailureSearch` decides, without Spark:

- If new subscriptions fail and the others do not, those subscriptions are at fault (`cluster.culprits`).
- Else it bisects the NEW records down to one that fails, and then looks for the subscriptions that fail with it. If one
  of them ever had a result, the record is at fault: it becomes a dead letter, and the execution passes it over.
  Otherwise those subscriptions are at fault, unless they are most of a channel without any result so far.
- If the query fails without any NEW record, or only for all of them together, nothing is blamed and the execution is
  retried later.

After `SEARCH_S` the search stops at larger parts, so that one bad value does not delay the others for long.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from tocsin.cluster.culprits import Culprits, bisect_failing

SEARCH_S = 30.0
"""The time after which the search no longer looks for single records and subscriptions."""
LATE_PARTS = 16
"""After `SEARCH_S` the records are cut into this many parts, and those that fail are passed over as a whole."""
MOST_SUBSCRIPTIONS = 50
"""The most subscriptions that are searched for one by one. Others are ended together with their neighbours."""
SAMPLES = 3
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
    refuse: Callable[[Mapping[int, str], Sequence[int]], None]
    """Ends subscriptions as soon as they are found: some with the reason, others without blame; see `Culprits`."""
    with_results: Collection[int]
    """The subscriptions that have stored results: their values have worked with the query."""
    clock_s: Callable[[], float]
    numbers: list[int]
    """The subscriptions, in order."""
    records: dict[str, pa.Table]
    strikes: Counter[int] = field(default_factory=Counter)
    """How many records each subscription was blamed for, over all searches."""
    until_s: float = math.inf
    """The time on `clock_s` after which the search stops at larger parts."""
    dead: list[DeadRecords] = field(default_factory=list)

    def run(self) -> bool:
        """Find what is at fault. Afterwards `records` are those to execute with, and `dead` those passed over.

        Returns False if nothing is at fault.
        """
        if not self.numbers or self._fails({name: rows.slice(0, 0) for name, rows in self.records.items()}) is not None:
            return False
        while self.numbers and self._fails(self.records) is not None:
            if self.with_results and self._end_suspects(self.records):
                continue  # no record had to be found, which takes longer
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
        return self.clock_s() > self.until_s

    def _judge(self, name: str, start: int, end: int, reason: str) -> None:
        """Blame a part of the records, or the subscriptions that fail with it."""
        rows = self.records[name]
        if self._end_suspects(self._with(name, rows.slice(start, end - start))):
            return
        self.dead.append(DeadRecords(name, rows.slice(start, end - start), reason))
        self.records[name] = pa.concat_tables([rows.slice(0, start), rows.slice(end)])

    def _suspects(self, part: Records) -> Culprits | None:
        """The subscriptions that fail with these records; None if the records are at fault whatever they are."""
        proven = [number for number in self.numbers if number in self.with_results]
        samples = sorted(_samples(proven or self.numbers))
        failing = [number for number in samples if self.fails(number, number, part) is not None]
        if failing and (proven or len(failing) == len(samples) == SAMPLES):
            return None
        suspects = bisect_failing(
            self.numbers,
            lambda first, last: self.fails(first, last, part),
            lambda reasons: len(reasons) < MOST_SUBSCRIPTIONS and not self._is_late(),
        )
        return None if any(number in self.with_results for number in suspects.reasons) else suspects

    def _end_suspects(self, part: Records) -> bool:
        """End the subscriptions that are at fault for the failure with these records; return False if there are none.

        None are at fault if they are most of the subscriptions and none of the others ever had a result.
        """
        suspects = self._suspects(part)
        if suspects is None:
            return False
        guilty = dict(suspects.reasons)
        together = [number for number in suspects.postponed if number not in self.with_results]
        others = len(self.numbers) - len(guilty) - len(together)
        if not self.with_results and others < len(guilty) + len(together):
            self.strikes.update(guilty.keys())
            guilty = {number: reason for number, reason in guilty.items() if self.strikes[number] >= STRIKES}
            together = []
        if not guilty and not together:
            return False
        self.refuse(guilty, together)
        ended = {*guilty, *together}
        self.numbers = [number for number in self.numbers if number not in ended]
        return True


def _samples(numbers: Sequence[int]) -> set[int]:
    return {numbers[0], numbers[len(numbers) // 2], numbers[-1]}
