"""The ledger of a chaos run: published records, expected deliveries and actual deliveries of each subscription. Pure.

It computes expected deliveries from the records alone, with plain Python predicates and without the product's code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tocsin.model.cursor import Cursor, execution_of


@dataclass(frozen=True, slots=True)
class PingRecord:
    """One record. `batch` numbers the publisher's requests; the publisher sends one when the last is acknowledged."""

    id: str
    kind: str
    n: int
    batch: int


Account = tuple[str, str]
"""(user, name of one of its subscriptions)."""


@dataclass(frozen=True, slots=True)
class Delivery:
    id: str
    cursor: str


@dataclass(slots=True)
class DeliveryLedger:
    matches: dict[Account, Callable[[PingRecord], bool]] = field(default_factory=dict)
    starts: dict[Account, int] = field(default_factory=dict)
    """The first batch that each subscription must get. Earlier records may arrive or not."""
    published: dict[str, PingRecord] = field(default_factory=dict)
    deliveries: dict[Account, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    gaps: int = 0

    def open(self, account: Account, matches: Callable[[PingRecord], bool], start: int) -> None:
        """Begin an account: the subscription is granted, and every batch from `start` on is published later."""
        self.matches[account] = matches
        self.starts[account] = start

    def publish(self, pings: list[PingRecord]) -> None:
        """Record acknowledged pings."""
        self.published |= {ping.id: ping for ping in pings}

    def deliver(self, account: Account, delivery: Delivery) -> None:
        self.deliveries[account].append(delivery)

    def expected(self, account: Account) -> set[str]:
        predicate, start = self.matches[account], self.starts.get(account, 0)
        return {ping.id for ping in self.published.values() if ping.batch >= start and predicate(ping)}

    def _unexpected(self, account: Account, delivered: Iterable[str]) -> int:
        """Count delivered records that do not match or were not published."""
        predicate = self.matches[account]
        return sum(name not in self.published or not predicate(self.published[name]) for name in delivered)

    def missing(self) -> int:
        return sum(
            len(self.expected(account) - {delivery.id for delivery in self.deliveries[account]})
            for account in self.matches
        )

    def report(self) -> dict[str, int]:
        counts = {account: Counter(delivery.id for delivery in self.deliveries[account]) for account in self.matches}
        expected = {account: self.expected(account) for account in self.matches}
        return {
            "published": len(self.published),
            "expected": sum(map(len, expected.values())),
            "delivered": sum(count.total() for count in counts.values()),
            "lost": sum(len(expected[account] - counts[account].keys()) for account in self.matches),
            "duplicated": sum(count.total() - len(count) for count in counts.values()),
            "out_of_order": sum(self._out_of_order(account) for account in self.matches),
            "unexpected": sum(self._unexpected(account, counts[account]) for account in self.matches),
            "gaps": self.gaps,
        }

    def findings(self, most: int = 20) -> list[str]:
        """Describe up to `most` errors. A record with one cursor twice was delivered twice; with two cursors, executed
        twice."""
        errors: list[str] = []
        for account in self.matches:
            cursors: dict[str, list[str]] = defaultdict(list)
            for place, delivery in enumerate(self.deliveries[account]):
                cursors[delivery.id].append(f"{delivery.cursor} (delivery {place})")
            errors += [f"{account}: {name} at {', '.join(at)}" for name, at in cursors.items() if len(at) > 1]
            errors += [f"{account}: {name} is lost" for name in self.expected(account) - cursors.keys()]
        return errors[:most]

    def _out_of_order(self, account: Account) -> int:
        """Count deliveries whose cursor does not rise, or whose record was acknowledged before those of an earlier
        execution. The rows of one execution have no order.
        """
        wrong = 0
        last: Cursor | None = None
        highest_before = highest = -1
        for delivery in self.deliveries[account]:
            cursor = Cursor.parse(delivery.cursor)
            assert cursor is not None
            batch = self.published[delivery.id].batch if delivery.id in self.published else highest_before
            if last is not None and (cursor.epoch, execution_of(cursor.offset)) > (
                last.epoch,
                execution_of(last.offset),
            ):
                highest_before = highest
            if (last is not None and cursor <= last) or batch < highest_before:
                wrong += 1
            highest = max(highest, batch)
            last = cursor
        return wrong
