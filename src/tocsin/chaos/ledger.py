"""The account: what was published, what each subscription must therefore get, what it got. Pure.

Expectations are computed here from the records alone, with plain Python predicates; nothing of the product takes part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from tocsin.model.cursor import Cursor, execution_of


@dataclass(frozen=True, slots=True)
class Ping:
    """One record. `batch` counts the publisher's requests: each was acknowledged before the next was sent."""

    id: str
    kind: str
    n: int
    batch: int


Account = tuple[str, str]
"""A user and one of its subscriptions, by a name of ours."""


@dataclass(frozen=True, slots=True)
class Delivery:
    id: str
    cursor: str


@dataclass(slots=True)
class Ledger:
    wanted: dict[Account, Callable[[Ping], bool]] = field(default_factory=dict)
    published: dict[str, Ping] = field(default_factory=dict)
    deliveries: dict[Account, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    gaps: int = 0

    def publish(self, pings: list[Ping]) -> None:
        """Acknowledged."""
        self.published |= {ping.id: ping for ping in pings}

    def deliver(self, account: Account, delivery: Delivery) -> None:
        self.deliveries[account].append(delivery)

    def expected(self, account: Account) -> set[str]:
        matches = self.wanted[account]
        return {ping.id for ping in self.published.values() if matches(ping)}

    def missing(self) -> int:
        return sum(
            len(self.expected(account) - {delivery.id for delivery in self.deliveries[account]})
            for account in self.wanted
        )

    def report(self) -> dict[str, int]:
        counts = {account: Counter(one.id for one in self.deliveries[account]) for account in self.wanted}
        expected = {account: self.expected(account) for account in self.wanted}
        return {
            "published": len(self.published),
            "expected": sum(map(len, expected.values())),
            "delivered": sum(count.total() for count in counts.values()),
            "lost": sum(len(expected[account] - counts[account].keys()) for account in self.wanted),
            "duplicated": sum(count.total() - len(count) for count in counts.values()),
            "out_of_order": sum(self._out_of_order(account) for account in self.wanted),
            "unexpected": sum(len(counts[account].keys() - expected[account]) for account in self.wanted),
            "gaps": self.gaps,
        }

    def findings(self, most: int = 20) -> list[str]:
        """What went wrong, for whoever looks for the reason. The same cursor twice was delivered twice; two cursors
        were executed twice."""
        found = []
        for account in self.wanted:
            cursors: dict[str, list[str]] = defaultdict(list)
            for place, delivery in enumerate(self.deliveries[account]):
                cursors[delivery.id].append(f"{delivery.cursor} (delivery {place})")
            found += [f"{account}: {name} at {', '.join(at)}" for name, at in cursors.items() if len(at) > 1]
            found += [f"{account}: {name} is lost" for name in self.expected(account) - cursors.keys()]
        return found[:most]

    def _out_of_order(self, account: Account) -> int:
        """Cursors must rise; and an execution must not bring what was acknowledged before an earlier one's records.

        Inside one execution rows have no order of their own.
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
