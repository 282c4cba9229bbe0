"""What was published to a topic and what each subscriber got: losses, repeats, order, and gaps that explain losses.

Pure. Every message of the run is a number; the publisher numbers its messages from 0. A probe of an observer is no
message of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

PROBE = b"probe "


@dataclass(slots=True)
class Received:
    """The items of one subscriber, in order: the number of a message, or None for a gap."""

    items: list[int | None] = field(default_factory=list)

    @property
    def numbers(self) -> list[int]:
        return [item for item in self.items if item is not None]


@dataclass(slots=True)
class TopicLedger:
    topic: str
    persistent: bool
    acknowledged: set[int] = field(default_factory=set)
    subscribers: list[Received] = field(default_factory=list)
    places: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(epoch, sequence) → the message there."""
    conflicts: int = 0
    """Two messages at the same place."""

    def place(self, epoch: int, sequence: int, data: bytes) -> None:
        self.conflicts += self.places.setdefault((epoch, sequence), data) != data

    def report(self) -> dict[str, int]:
        lost = [self.acknowledged.difference(received.numbers) for received in self.subscribers]
        return {
            "acknowledged": len(self.acknowledged),
            "lost": sum(map(len, lost)),
            "lost_untold": sum(
                len(untold(received.items, missing)) for received, missing in zip(self.subscribers, lost, strict=True)
            ),
            "duplicated": sum(len(received.numbers) - len(set(received.numbers)) for received in self.subscribers),
            "out_of_order": sum(_descents(received.numbers) for received in self.subscribers),
            "gaps": sum(received.items.count(None) for received in self.subscribers),
            "conflicts": self.conflicts,
        }

    @property
    def correct(self) -> bool:
        report = self.report()
        never = ("lost_untold", "duplicated", "out_of_order", "conflicts")
        return not any(report[name] for name in (*never, *(("lost", "gaps") if self.persistent else ())))


def untold(items: Iterable[int | None], missing: set[int]) -> set[int]:
    """The missing numbers that no gap explains: no gap lies between the messages around them."""
    explained: set[int] = set()
    last, gap = -1, False
    for item in items:
        if item is None:
            gap = True
            continue
        if gap:
            explained |= {number for number in missing if last < number < item}
        last, gap = max(last, item), False
    if gap:
        explained |= {number for number in missing if number > last}
    return missing - explained


def _descents(numbers: list[int]) -> int:
    return sum(later < earlier for earlier, later in pairwise(numbers))


@dataclass(slots=True)
class Homes:
    """Which broker accepted messages in which epoch of a topic, as observers at the brokers saw it."""

    brokers: dict[int, set[str]] = field(default_factory=dict)
    """Epoch → brokers that sent messages of it."""
    first_s: dict[int, float] = field(default_factory=dict)
    """Epoch → when its first message was observed."""
    probes: list[tuple[int, float]] = field(default_factory=list)
    """(epoch, when the probe was sent) of accepted probes."""

    def observe(self, broker: str, epoch: int, data: bytes, now_s: float) -> None:
        self.first_s.setdefault(epoch, now_s)
        if data.startswith(PROBE):
            _, home, sent_s = data.decode().split()
            self.brokers.setdefault(epoch, set()).add(home)
            self.probes.append((epoch, float(sent_s)))

    def two_homes(self) -> int:
        """Epochs in which two brokers accepted, and probes that an earlier epoch accepted although they were sent when
        a later one accepted already."""
        shared = sum(len(brokers) > 1 for brokers in self.brokers.values())
        begins = sorted(self.first_s.items())
        late = 0
        for epoch, sent_s in set(self.probes):
            late += any(later > epoch and first_s < sent_s for later, first_s in begins)
        return shared + late
