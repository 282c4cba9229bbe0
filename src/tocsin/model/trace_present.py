"""The present, from the rows so far: the newest word on every thing that is shown, and nothing older.

`picture` gives the rows that rebuild it. A replay folds a file with this; the live coordinator folds what is not in its
own registry (places, positions, channels). Memory is bounded by what there is, people and events by a number of their
own.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec.structs import replace

from tocsin.model.trace import Kind, TraceRow

PEOPLE: Final = 20_000
"""In a picture: more than anybody can tell apart, and still a few megabytes."""
EVENTS: Final = 200
EVENTS_S: Final = 60.0
"""How long an event is part of the present: it fades."""
_STREETS: Final = 50_000
_PLACES: Final = 20_000

_ARRIVES = {Kind.JOIN: "broker", Kind.MOVED: "target", Kind.FAILOVER: "target"}
"""Kinds after which somebody's home is known, with the column that has it."""


class Present:
    def __init__(self, people: int = PEOPLE) -> None:
        self._people = people
        self.time_s = 0.0
        self._streets: list[TraceRow] = []
        self._places: dict[tuple[str, str | None, float | None, float | None], TraceRow] = {}
        self._brokers: dict[str, TraceRow] = {}
        self._samples: dict[str, TraceRow] = {}
        self.homes: dict[str, str] = {}
        """Subscriber → broker."""
        self._positions: dict[str, TraceRow] = {}
        self._channels: dict[str, TraceRow] = {}
        self._events: deque[TraceRow] = deque(maxlen=EVENTS)
        self._last: dict[str, TraceRow] = {}
        """Of kinds of which only the last row counts."""

    def fold(self, row: TraceRow) -> None:
        self.time_s = max(self.time_s, row.time_s)
        match row.kind:
            case Kind.JOIN | Kind.MOVED | Kind.FAILOVER | Kind.LEAVE:
                self._settle(row)
            case Kind.POSITION if row.subscriber is not None:
                self._position(row.subscriber, row)
            case Kind.SAMPLE if row.broker is not None:
                self._samples[row.broker] = row
            case Kind.BROKER if row.broker is not None:
                self._broker(row.broker, row)
            case Kind.CHANNEL if row.channel is not None:
                self._channel(row.channel, row)
            case Kind.EVENT:
                self._events.append(row)
            case Kind.BALANCE | Kind.CLUSTER:
                self._last[row.kind] = row
            case Kind.STREET if len(self._streets) < _STREETS:
                self._streets.append(row)
            case Kind.PLACE if len(self._places) < _PLACES:
                dataset = str((row.detail or {}).get("dataset"))
                self._places[dataset, row.note, row.lat, row.lon] = row
            case Kind.PICTURE:
                self._forget(row.time_s)

    def picture(self, time_s: float) -> list[TraceRow]:
        """Dated `time_s`, but for events, which are as old as they are; in order of time."""
        joins = [
            TraceRow(time_s, Kind.JOIN, subscriber=one, broker=home)
            for one, home in list(self.homes.items())[: self._people]
        ]
        parts = (self._streets, self._places.values(), self._brokers.values(), self._samples.values(),
                 self._positions.values(), self._last.values(), self._channels.values())  # fmt: skip
        known = [replace(row, time_s=time_s) for part in parts for row in part]
        events = [row for row in self._events if time_s - EVENTS_S <= row.time_s <= time_s]
        return [*events, *known, *joins, TraceRow(time_s, Kind.TICK)]

    def forget_places(self, dataset: str) -> None:
        """They are about to be told anew."""
        self._places = {key: row for key, row in self._places.items() if key[0] != dataset}

    def copy(self) -> Present:
        """An independent one; rows are never changed and are shared."""
        other = Present(self._people)
        other.time_s = self.time_s
        other._streets = list(self._streets)
        other._places, other._brokers = dict(self._places), dict(self._brokers)
        other._samples, other.homes = dict(self._samples), dict(self.homes)
        other._positions, other._channels = dict(self._positions), dict(self._channels)
        other._events, other._last = deque(self._events, maxlen=EVENTS), dict(self._last)
        return other

    def _settle(self, row: TraceRow) -> None:
        column = _ARRIVES.get(Kind(row.kind))
        home = None if column is None else getattr(row, column)
        if row.subscriber is None:
            return
        if home is None:
            self.homes.pop(row.subscriber, None)
        else:
            self.homes[row.subscriber] = home

    def _position(self, subscriber: str, row: TraceRow) -> None:
        """Whoever has not been heard of for longest gives way to a newcomer."""
        self._positions.pop(subscriber, None)
        self._positions[subscriber] = row
        if len(self._positions) > self._people:
            del self._positions[next(iter(self._positions))]

    def _broker(self, broker: str, row: TraceRow) -> None:
        if (row.detail or {}).get("state") == "gone":
            self._brokers.pop(broker, None)
            self._samples.pop(broker, None)
        else:
            self._brokers[broker] = row

    def _channel(self, channel: str, row: TraceRow) -> None:
        if (row.detail or {}).get("state") == "gone":
            self._channels.pop(channel, None)
        else:
            self._channels[channel] = row

    def _forget(self, time_s: float) -> None:
        self.time_s = time_s
        for known in (self._places, self._brokers, self._samples, self.homes, self._positions, self._channels,
                      self._last, self._streets, self._events):  # fmt: skip
            known.clear()
