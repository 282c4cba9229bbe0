"""The account of a demo: the results of each frontend subscription, compared with the data cluster's results. Pure.

From its first cursor on, a subscription must have received every stored result, once and in order. Time that a person
is logged out changes nothing: the results of that time must arrive after the next login.

An unsubscribe ends the account of a subscription; a later subscribe to the same values starts another account at its
new cursor. Before a person unsubscribes, it reads which results are stored and waits for them: all of these must have
arrived. Later results may be in transit while the unsubscribe is sent and may arrive or not; after the answer none may.

`recomputation` computes the expected results a second time, from the reports alone.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from tocsin.model.cursor import Cursor

Longs = npt.NDArray[np.int64]
_RECENT = 10_000
"""The last results among which an offset is looked up."""
_FINDINGS = 10
"""Subscriptions with errors that the report names."""


@dataclass(slots=True, eq=False)
class SubscriptionAccount:
    """One frontend subscription from its grant to its unsubscribe, and its results in order of arrival."""

    person: str
    subscription: str
    channel: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    first: Cursor | None = None
    """Results from this cursor on are promised. None until the subscription is granted."""
    granted_s: float = math.inf
    leaving_s: float = math.inf
    """When the person sent the unsubscribe."""
    ended_s: float = math.inf
    """When the unsubscribe was answered."""
    stored: Longs | None = None
    """The sorted offsets after each stored result, read before the unsubscribe: the data cluster deletes the results of
    a subscription that no broker holds."""
    epochs: set[int] = field(default_factory=set)
    began_s: float = math.inf
    """When the first result arrived."""
    overtook: int = 0
    """Results that arrived before the grant."""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    reports: array[int] = field(default_factory=lambda: array("q"))
    latencies_s: array[float] = field(default_factory=lambda: array("f"))
    shelters: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The names of the shelters in the results of the last batch, by report number."""

    @property
    def ended(self) -> bool:
        return self.ended_s < math.inf

    def __str__(self) -> str:
        until = f" until {self.ended_s:.1f}" if self.ended else ""
        offsets = f", offsets {self.offsets[0]} to {self.offsets[-1]}" if self.offsets else ""
        granted = "never granted" if self.first is None else f"granted at {self.granted_s:.1f} from {self.first}{until}"
        return f"{self.person}, {self.channel or self.subscription}, {granted}, {self.overtook} before it{offsets}"


@dataclass(frozen=True, slots=True)
class PublishedReport:
    kind: str
    severity: int
    lat: float
    lon: float
    published_s: float
    """Wall-clock time."""


@dataclass(slots=True)
class DemoAccount:
    _holdings: dict[tuple[str, str], list[SubscriptionAccount]] = field(default_factory=dict)
    """The accounts of each frontend subscription, by person and subscription; only the last may be open."""
    published: dict[int, PublishedReport] = field(default_factory=dict)
    """By the report's number. Numbers have no holes."""
    batch_from: int | None = None
    """The number of the first report of the last batch; None before it."""
    gaps: int = 0
    strange: int = 0
    """Results of reports that the demo did not publish."""
    delivered: int = 0
    granted: int = 0
    """Subscribe requests that a broker granted."""
    absences: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """When each person was logged out, as (logout, next login) by the wall clock."""

    def __iter__(self) -> Iterator[SubscriptionAccount]:
        return (holding for holdings in self._holdings.values() for holding in holdings)

    def holding(self, person: str, subscription: str) -> SubscriptionAccount:
        """Return the open account of a subscription, and create it if a result overtook the grant."""
        holdings = self._holdings.setdefault((person, subscription), [])
        if not holdings or holdings[-1].ended:
            holdings.append(SubscriptionAccount(person, subscription))
        return holdings[-1]

    def grant(
        self,
        person: str,
        subscription: str,
        channel: str,
        parameters: Mapping[str, Any],
        cursor: str,
        now_s: float,
        requested_s: float = math.inf,
    ) -> None:
        """Record a grant. `requested_s` is when the person sent the request.

        A hand-over may lose the answer to a request that a broker has granted. The SDK repeats the request at the next
        broker, which answers with its present cursor and already delivers from the first grant on. So results that
        arrived between request and answer belong to the subscription.
        """
        holding = self.holding(person, subscription)
        holding.channel, holding.parameters = channel, parameters
        first, holding.granted_s = Cursor.parse(cursor), now_s
        if first is not None and holding.offsets and holding.began_s >= requested_s:
            # The cursor of a result is the position after it.
            first = Cursor(first.epoch, min(first.offset, holding.offsets[0] - 1))
        holding.first = first
        self.granted += 1

    def has_received(self, person: str, subscription: str, stored: Longs) -> bool:
        """True if the last of these stored results has arrived."""
        holding = self.holding(person, subscription)
        last = int(stored[-1]) if len(stored) else 0
        return holding.first is None or last <= holding.first.offset or last in holding.offsets[-_RECENT:]

    def leave(self, person: str, subscription: str, stored: Longs, now_s: float) -> None:
        """Record that the person sends an unsubscribe. `stored` has the offsets of the results so far."""
        holding = self.holding(person, subscription)
        holding.stored, holding.leaving_s = stored, now_s

    def end(self, person: str, subscription: str, now_s: float) -> None:
        """Record that the unsubscribe was answered."""
        self.holding(person, subscription).ended_s = now_s

    def log_out(self, person: str, now_s: float) -> None:
        self.absences.setdefault(person, []).append((now_s, math.inf))

    def log_in(self, person: str, now_s: float) -> None:
        """Record a login. A person's first login ends no absence."""
        if absences := self.absences.get(person):
            absences[-1] = (absences[-1][0], now_s)

    def publish(self, number: int, report: PublishedReport) -> None:
        """Record a report before it is sent."""
        self.published[number] = report

    def take(
        self,
        holding: SubscriptionAccount,
        cursor: str,
        number: int | None,
        now_s: float,
        shelters: tuple[str, ...] = (),
    ) -> None:
        at = Cursor.parse(cursor)
        report = None if number is None else self.published.get(number)
        if at is None or number is None or report is None:
            self.strange += 1
            return
        self.delivered += 1
        holding.began_s = min(holding.began_s, now_s)
        holding.overtook += holding.first is None
        holding.epochs.add(at.epoch)
        holding.offsets.append(at.offset)
        holding.reports.append(number)
        holding.latencies_s.append(now_s - report.published_s)
        if self.batch_from is not None and number >= self.batch_from:
            holding.shelters[number] = shelters

    # -- the end -------------------------------------------------------------------------------------------------------

    def frontend(self) -> int:
        """The number of different frontend subscriptions that were granted."""
        return len({(holding.person, holding.subscription) for holding in self if holding.first is not None})

    def backend(self) -> int:
        return len({holding.subscription for holding in self if holding.first is not None})

    def by_channel(self) -> dict[str, list[SubscriptionAccount]]:
        channels: dict[str, list[SubscriptionAccount]] = {}
        for holding in self:
            channels.setdefault(holding.channel, []).append(holding)
        return channels

    def open_by_channel(self) -> dict[str, set[str]]:
        """The subscriptions that a person holds now, by channel."""
        channels: dict[str, set[str]] = {}
        for holding in self:
            if holding.first is not None and not holding.ended:
                channels.setdefault(holding.channel, set()).add(holding.subscription)
        return channels

    def audited(self, stored: Mapping[str, Longs]) -> Audit:
        """Compare with the data cluster's results: `stored` has the sorted offsets after each, per subscription."""
        audit = Audit()
        nothing = np.empty(0, np.int64)
        for holding in self:
            if holding.first is None:
                found = Audit(received=len(holding.offsets), unexpected=len(holding.offsets))
            else:
                found = _against_stored(holding, holding.first, stored.get(holding.subscription, nothing))
            audit += found
            if found.is_wrong and len(audit.findings) < _FINDINGS:
                audit.findings.append(f"{holding}: {found}")
        audit.unexpected += self.strange
        audit.gaps = self.gaps
        return audit


@dataclass(slots=True)
class Audit:
    expected: int = 0
    received: int = 0
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    unexpected: int = 0
    gaps: int = 0
    findings: list[str] = field(default_factory=list, compare=False)
    """The first subscriptions with errors."""

    def __iadd__(self, other: Audit) -> Audit:
        for counted in fields(self):
            setattr(self, counted.name, getattr(self, counted.name) + getattr(other, counted.name))
        return self

    @property
    def is_wrong(self) -> bool:
        return bool(self.lost or self.repeated or self.out_of_order or self.unexpected)

    def __str__(self) -> str:
        counts = {counted.name: getattr(self, counted.name) for counted in fields(self) if counted.name != "findings"}
        return ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def _against_stored(holding: SubscriptionAccount, first: Cursor, stored: Longs) -> Audit:
    received = np.array(holding.offsets, np.int64)
    distinct = np.unique(received)
    if holding.ended:
        # Results stored after the person read the stored ones may be in transit: they count as stored if they arrived.
        known = np.empty(0, np.int64) if holding.stored is None else holding.stored
        read_until = int(known[-1]) if len(known) else first.offset
        stored = np.union1d(known, distinct[distinct > read_until])
    # The cursor of a result is the position after it, so promised results have cursors above the first one.
    promised = stored[stored > first.offset]
    return Audit(
        expected=len(promised),
        received=len(received),
        lost=len(np.setdiff1d(promised, distinct, assume_unique=True)),
        repeated=len(received) - len(distinct),
        out_of_order=int((np.diff(received) < 0).sum()),
        unexpected=len(np.setdiff1d(distinct, promised, assume_unique=True)) + bool(holding.epochs - {first.epoch}),
    )
