"""The stages that the deliveries of a city consist of (`demo/deliveries.py` says which deliveries count). Pure.

The stages are means, because means add up and quantiles do not:
- *ingest*: from the publisher's send until the record is in the dataset, or an execution has it if that is earlier;
- *tick*: until the execution starts. For a repetitive channel this is the wait for the tick and for a free thread;
- *execution*: until the results are written;
- *pull*: commit, announcement and pull, as `pull_probe` measures them, at most until the client has the result;
- *delivery*: the rest, until the client has the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from tocsin.demo.deliveries import Deliveries, Longs, Seconds
from tocsin.model.cursor import ROW_BITS


@dataclass(frozen=True, slots=True)
class Executions:
    """The executions of one channel that had results, in order."""

    numbers: Longs
    started_s: Seconds
    finished_s: Seconds

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, float]]) -> Self:
        """From the rows of `GET /v1/executions`, in any order."""
        ordered = sorted(rows, key=lambda row: row["execution"])
        return cls(
            np.array([row["execution"] for row in ordered], np.int64),
            np.array([row["started_s"] for row in ordered]),
            np.array([row["finished_s"] for row in ordered]),
        )

    def places(self, offsets: Longs) -> Longs:
        """The place of the execution that produced each result, by the offset after the result; -1 if unknown."""
        # An execution with very many results takes several numbers: the last one not above it is its own.
        places: Longs = np.searchsorted(self.numbers, (offsets - 1) >> ROW_BITS, side="right") - 1
        return places


@dataclass(frozen=True, slots=True)
class Stages:
    """Mean seconds of each stage."""

    deliveries: int
    ingest_s: float
    tick_s: float
    execution_s: float
    pull_s: float
    delivery_s: float


def pull_share(deliveries: Deliveries, executions: Executions, pulled_s: Mapping[int, float]) -> float:
    """The share of the time from written results to receipt that the pull takes; 0 without pulls.

    `pulled_s` has the time at which the probe had pulled an execution, by the execution's number.
    """
    numbers = executions.numbers.tolist()
    pulls_s = np.array([pulled_s.get(number, np.nan) for number in numbers])
    places = executions.places(deliveries.offsets)
    known = places >= 0
    known[known] &= ~np.isnan(pulls_s[places[known]])
    known &= deliveries.absent_s == 0.0
    finished_s, received_s = executions.finished_s[places[known]], deliveries.received_s[known]
    total_s = float(np.sum(received_s - finished_s))
    if not total_s > 0.0:
        return 0.0
    return float(np.sum(np.minimum(pulls_s[places[known]], received_s) - finished_s)) / total_s


def stages(deliveries: Deliveries, executions: Executions, stored_s: Seconds, share: float) -> Stages | None:
    """The stages of one channel's deliveries, or None if there are none.

    `stored_s` has the time at which each report was in its dataset, by number, NaN if unknown. `share` is the pull's
    part of the time after the execution.
    """
    places = executions.places(deliveries.offsets)
    stored = np.full(len(deliveries), np.nan)
    known = deliveries.reports < len(stored_s)
    stored[known] = stored_s[deliveries.reports[known]]
    usable = (places >= 0) & ~np.isnan(stored)
    if not usable.any():
        return None
    started_s, finished_s = executions.started_s[places[usable]], executions.finished_s[places[usable]]
    published_s = deliveries.published_s[usable]
    available_s = np.clip(np.minimum(stored[usable], started_s), published_s, None)
    after_s = float(np.mean(deliveries.received_s[usable] - finished_s - deliveries.absent_s[usable]))
    return Stages(
        int(usable.sum()),
        float(np.mean(available_s - published_s)),
        float(np.mean(started_s - available_s)),
        float(np.mean(finished_s - started_s)),
        after_s * share,
        after_s * (1.0 - share),
    )


def merged(parts: Sequence[Stages]) -> Stages | None:
    """The stages of several channels together, weighted by deliveries."""
    total = sum(part.deliveries for part in parts)
    if not total:
        return None

    def mean(name: str) -> float:
        return sum(float(getattr(part, name)) * part.deliveries for part in parts) / total

    return Stages(total, *(mean(stage.name) for stage in fields(Stages)[1:]))
