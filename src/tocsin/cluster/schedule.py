"""The schedule of channels. Pure: time is an argument, from a clock that never steps back.

A repetitive channel keeps its period: its ticks are whole periods from its first tick. An execution that overruns ends
normally. The ticks it covered count as missed and are not repeated, because the next execution covers their records. A
continuous channel runs when records have arrived, and again if more arrived while it ran.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tocsin.model.ids import ChannelName

_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of the golden ratio, without their whole part, spread evenly however many there are."""
SHORT_ROUND_S = 0.1
LONGEST_REST_S = 0.5
"""A group whose channels took no longer than the first together starts again at once. See `rest_s`."""


def phase_s(period_s: float, number: int) -> float:
    """How much of its first period the channel with this number skips.

    The channels of an application are created together. Without phases, all those with the same period would run at the
    same moment, and each would wait for the others.
    """
    return period_s * (number * _GOLDEN % 1.0)


def joint_groups(reads: Mapping[ChannelName, Hashable], most: int) -> dict[ChannelName, int]:
    """The number of the group in which each channel runs together with others.

    `reads` are the datasets whose NEW records each channel reads: those of a group read the same. Groups have at most
    so many channels and about equal sizes. They depend on nothing else, so that the same channels stay together.
    """
    members: dict[Hashable, list[ChannelName]] = {}
    for channel in sorted(reads):
        members.setdefault(reads[channel], []).append(channel)
    groups: dict[ChannelName, int] = {}
    first = 0
    for channels in members.values():
        count = -(-len(channels) // most)
        groups |= {channel: first + place * count // len(channels) for place, channel in enumerate(channels)}
        first += count
    return groups


def rest_s(round_s: float) -> float:
    """How long a group rests after its channels took so long together.

    Most of a round is fixed cost. Without a rest, many groups would always use the whole machine, and brokers would
    wait for their results. The records that arrive during the rest share one round.
    """
    return 0.0 if round_s <= SHORT_ROUND_S else min(round_s, LONGEST_REST_S)


@dataclass(slots=True)
class _Entry:
    period_s: float | None
    due_s: float
    """Repetitive: the next tick. Continuous: when the first unmatched records arrived, infinity if there are none."""
    running: bool = False
    missed: int = 0
    uncovered_s: float | None = None
    """When the first tick or arrival was due that no successful execution has covered; None if there is none.

    Set when an execution starts, and kept if the execution fails.
    """


class Schedule:
    def __init__(self) -> None:
        self._entries: dict[ChannelName, _Entry] = {}
        self.groups: Mapping[ChannelName, int] = {}
        """Channels of a group start together: one that is due waits until no other of its group is running."""
        self._rested_s: dict[int, float] = {}
        """When the rest of each group ends."""

    def rest(self, group: int, until_s: float) -> None:
        """Let no channel of a group start before this time."""
        self._rested_s[group] = until_s

    def _starts_s(self) -> dict[ChannelName, float]:
        """When each channel may start. Those that run, or wait for the end of their group's round, are left out."""
        busy = {self.groups.get(name) for name, entry in self._entries.items() if entry.running} - {None}
        return {
            name: entry.due_s if group is None else max(entry.due_s, self._rested_s.get(group, entry.due_s))
            for name, entry in self._entries.items()
            if not entry.running and (group := self.groups.get(name)) not in busy
        }

    def add_repetitive(self, channel: ChannelName, period_s: float, now_s: float) -> None:
        self._entries[channel] = _Entry(period_s, now_s + period_s)

    def add_continuous(self, channel: ChannelName) -> None:
        self._entries[channel] = _Entry(None, float("inf"))

    def remove(self, channel: ChannelName) -> None:
        self._entries.pop(channel, None)

    def arrived(self, channel: ChannelName, now_s: float) -> None:
        """Note that a continuous channel has NEW records."""
        entry = self._entries.get(channel)
        if entry is not None and entry.period_s is None:
            entry.due_s = min(entry.due_s, now_s)

    def take_due(self, now_s: float) -> list[ChannelName]:
        """The channels to run now, the longest waiting first. Each counts as running until `finished`."""
        due = sorted(
            (name for name, start_s in self._starts_s().items() if start_s <= now_s),
            key=lambda name: (self._entries[name].due_s, name),
        )
        for name in due:
            entry = self._entries[name]
            entry.running = True
            entry.uncovered_s = entry.due_s if entry.uncovered_s is None else entry.uncovered_s
            entry.due_s = float("inf") if entry.period_s is None else entry.due_s + entry.period_s
        return due

    def finished(self, channel: ChannelName, now_s: float, *, succeeded: bool = True) -> int:
        """Note that an execution ended; return how many ticks it missed."""
        entry = self._entries.get(channel)
        if entry is None:
            return 0
        entry.running = False
        if succeeded:
            entry.uncovered_s = None
        if entry.period_s is None or entry.due_s > now_s:
            return 0
        # A tick that is due at this very moment is not missed: it runs next.
        missed = int((now_s - entry.due_s) // entry.period_s)
        if entry.due_s + missed * entry.period_s < now_s:
            missed += 1
        entry.due_s += missed * entry.period_s
        entry.missed += missed
        return missed

    def missed(self, channel: ChannelName) -> int:
        entry = self._entries.get(channel)
        return 0 if entry is None else entry.missed

    def due_since_s(self, channel: ChannelName, now_s: float) -> float | None:
        """Since when a channel has a tick or NEW records that no execution has covered; None if it has none."""
        entry = self._entries.get(channel)
        if entry is None:
            return None
        if entry.uncovered_s is not None:
            return entry.uncovered_s
        return entry.due_s if entry.due_s <= now_s else None

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next channel may start; None if only arrivals can make one due."""
        soonest = min(self._starts_s().values(), default=float("inf"))
        return None if soonest == float("inf") else max(0.0, soonest - now_s)
