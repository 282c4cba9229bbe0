"""The deliveries of a demo: the seconds from publisher to client per report, while the receiver was logged in.

A report that is published while its receiver is logged out does not count: its delay measures the absence. If a person
logs out between publication and receipt, the time of the absence is subtracted. Everything else counts, hand-overs
included. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from tocsin.demo.account import DemoAccount, SubscriptionAccount

Seconds = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Deliveries of one channel, or of several."""

    reports: Longs
    offsets: Longs
    published_s: Seconds
    """Wall-clock time of the publisher's send."""
    received_s: Seconds
    absent_s: Seconds
    """The time between the two that the person was logged out."""

    @classmethod
    def of(cls, account: DemoAccount, holdings: Iterable[SubscriptionAccount]) -> Self:
        parts = [_of_holding(account, holding) for holding in holdings]
        columns = zip(*parts, strict=True) if parts else ([np.empty(0)] for _ in fields(cls))
        reports, offsets, *times_s = (np.concatenate(column) for column in columns)
        return cls(reports.astype(np.int64), offsets.astype(np.int64), *times_s)

    def between(self, from_s: float, to_s: float) -> Self:
        """The deliveries of records that were published in this time."""
        chosen = (self.published_s >= from_s) & (self.published_s < to_s)
        return type(self)(*(getattr(self, column.name)[chosen] for column in fields(self)))

    def __len__(self) -> int:
        return len(self.reports)

    @property
    def latencies_s(self) -> Seconds:
        latencies_s: Seconds = self.received_s - self.published_s - self.absent_s
        return latencies_s


def _of_holding(account: DemoAccount, holding: SubscriptionAccount) -> tuple[npt.NDArray[np.generic], ...]:
    reports = np.array(holding.reports, np.int64)
    published_s = np.array([account.published[number].published_s for number in holding.reports])
    received_s = published_s + np.array(holding.latencies_s, np.float64)
    absent_s = np.zeros(len(reports))
    counts = np.ones(len(reports), bool)
    for logout_s, login_s in account.absences.get(holding.person, ()):
        counts &= (published_s < logout_s) | (published_s >= login_s)
        absent_s += np.clip(np.minimum(received_s, login_s) - np.maximum(published_s, logout_s), 0.0, None)
    offsets = np.array(holding.offsets, np.int64)
    return tuple(column[counts] for column in (reports, offsets, published_s, received_s, absent_s))


def quantiles_s(parts_s: Sequence[Seconds]) -> tuple[float | None, float | None]:
    """(p50, p95) of all parts together, None without latencies."""
    latencies_s = np.concatenate([*parts_s, np.empty(0)])
    if not len(latencies_s):
        return None, None
    return float(np.quantile(latencies_s, 0.5)), float(np.quantile(latencies_s, 0.95))
