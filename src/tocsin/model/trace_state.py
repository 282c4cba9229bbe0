"""The current state of a traced network: the latest row about each object that is shown.

A replay folds a recording into it. The live coordinator folds the rows that its registry does not hold: places,
positions and channels. `picture` returns the rows that rebuild the state. Streets, places, subscribers and events are
bounded in number.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec.structs import replace

from tocsin.model.trace import Kind, TraceRow

MAX_SUBSCRIBERS: Final = 20_000
"""Subscribers in a picture: more than a viewer can tell apart, in a few megabytes."""
EVENTS: Final = 200
"""The latest events that are kept."""
EVENTS_S: Final = 60.0
"""How long an event stays in a picture, in seconds."""
_STREETS: Final = 50_000
_PLACES: Final = 20_000
MAX_TOPICS: Final = 2_000
"""Topics in a picture."""

_HOME_COLUMNS = {Kind.JOIN: "broker", Kind.MOVED: "target", Kind.FAILOVER: "target"}
"""Kinds that set a subscriber's home, with the column that names the home."""


class TraceState:
    def __init__(self, max_subscribers: int = MAX_SUBSCRIBERS) -> None:
        self._max_subscribers = max_subscribers
        self.time_s = 0.0
        self._streets: list[TraceRow] = []
        self._places: dict[tuple[str, str | None, float | None, float | None], TraceRow] = {}
        self._brokers: dict[str, TraceRow] = {}
        self._samples: dict[str, TraceRow] = {}
        self.homes: dict[str, str] = {}
        """Subscriber → broker."""
        self._positions: dict[str, TraceRow] = {}
        self._channels: dict[str, TraceRow] = {}
        self._topics: dict[str, TraceRow] = {}
        self._events: deque[TraceRow] = deque(maxlen=EVENTS)
        self._last: dict[str, TraceRow] = {}
        """The last row of each kind whose earlier rows do not matter."""

    def fold(self, row: TraceRow) -> None:
        self.time_s = max(self.time_s, row.time_s)
        match row.kind:
            case Kind.JOIN | Kind.MOVED | Kind.FAILOVER | Kind.LEAVE:
                self._set_home(row)
            case Kind.POSITION if row.subscriber is not None:
                self._position(row.subscriber, row)
            case Kind.SAMPLE if row.broker is not None:
                self._samples[row.broker] = row
            case Kind.BROKER if row.broker is not None:
                self._broker(row.broker, row)
            case Kind.CHANNEL if row.channel is not None:
                self._channel(row.channel, row)
            case Kind.TOPIC:
                self._topic(str((row.detail or {}).get("topic")), row)
            case Kind.EVENT:
                self._events.append(row)
            case Kind.BALANCE | Kind.CLUSTER | Kind.SITES:
                self._last[row.kind] = row
            case Kind.STREET if len(self._streets) < _STREETS:
                self._streets.append(row)
            case Kind.PLACE if len(self._places) < _PLACES:
                dataset = str((row.detail or {}).get("dataset"))
                self._places[dataset, row.note, row.lat, row.lon] = row
            case Kind.PICTURE:
                self._clear(row.time_s)

    def picture(self, time_s: float) -> list[TraceRow]:
        """Rows that rebuild the state, in order of time. Recent events keep their times; others are dated `time_s`."""
        joins = [
            TraceRow(time_s, Kind.JOIN, subscriber=subscriber, broker=home)
            for subscriber, home in list(self.homes.items())[: self._max_subscribers]
        ]
        latest = (self._places, self._brokers, self._samples, self._positions, self._last, self._channels, self._topics)
        rows = [*self._streets, *(row for rows in latest for row in rows.values())]
        state_rows = [replace(row, time_s=time_s) for row in rows]
        events = [row for row in self._events if time_s - EVENTS_S <= row.time_s <= time_s]
        return [*events, *state_rows, *joins, TraceRow(time_s, Kind.TICK)]

    def forget_places(self, dataset: str) -> None:
        """Drop the places of a dataset; the caller folds the new ones."""
        self._places = {key: row for key, row in self._places.items() if key[0] != dataset}

    def copy(self) -> TraceState:
        """An independent copy. Rows are immutable and shared."""
        other = TraceState(self._max_subscribers)
        other.time_s = self.time_s
        other._streets = list(self._streets)
        other._places, other._brokers = dict(self._places), dict(self._brokers)
        other._samples, other.homes = dict(self._samples), dict(self.homes)
        other._positions, other._channels = dict(self._positions), dict(self._channels)
        other._topics = dict(self._topics)
        other._events, other._last = deque(self._events, maxlen=EVENTS), dict(self._last)
        return other

    def _set_home(self, row: TraceRow) -> None:
        column = _HOME_COLUMNS.get(Kind(row.kind))
        home = None if column is None else getattr(row, column)
        if row.subscriber is None:
            return
        if home is None:
            self.homes.pop(row.subscriber, None)
        else:
            self.homes[row.subscriber] = home

    def _position(self, subscriber: str, row: TraceRow) -> None:
        """Keep the position; beyond the bound, drop the position that was updated least recently."""
        self._positions.pop(subscriber, None)
        self._positions[subscriber] = row
        if len(self._positions) > self._max_subscribers:
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

    def _topic(self, topic: str, row: TraceRow) -> None:
        if (row.detail or {}).get("state") == "gone":
            self._topics.pop(topic, None)
        elif topic in self._topics or len(self._topics) < MAX_TOPICS:
            self._topics[topic] = row

    def _clear(self, time_s: float) -> None:
        self.time_s = time_s
        for rows in (self._places, self._brokers, self._samples, self._positions, self._channels, self._topics):
            rows.clear()
        self._last.clear()
        self.homes.clear()
        self._streets.clear()
        self._events.clear()
