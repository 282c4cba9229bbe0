"""The trace of a simulated run: the rows that the dashboard shows, in the order of events (`model.trace`).

`Trace` keeps the rows in memory as Arrow batches and writes them once, at the end. Rows of one kind and one instant are
one batch: a run of a million subscribers must not make a Python object of each row. `RunRecorder` turns the events of
a run into rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tocsin.model.plan import Balance, Plan
from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.model.trace import SCHEMA, Kind, encoded_detail, kind_column
from tocsin.policies.balance.load import Longs
from tocsin.sim.balance.brokers import AggregatedBrokers
from tocsin.sim.balance.world import BalanceWorld

_SHOWN = ("scheme", "shuffle", "alpha", "beta_bytes_per_s", "gamma", "theta_bytes_per_s", "placement")


class Trace:
    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def add(self, time_s: float, kind: Kind, count: int, columns: Mapping[str, Sequence[Any] | Any]) -> None:
        """Add `count` rows. A column is a sequence of that length, or one value for all rows; a detail is a mapping."""
        if not count:
            return
        arrays = []
        for field in SCHEMA:
            if field.name == "time_s":
                arrays.append(pa.repeat(pa.scalar(time_s, field.type), count))
            elif field.name == "kind":
                arrays.append(kind_column([kind] * count))
            else:
                arrays.append(pa.array(_values(columns.get(field.name), count), field.type))
        self._batches.append(pa.record_batch(arrays, schema=SCHEMA))

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self._batches, schema=SCHEMA).unify_dictionaries()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.table(), path, compression="zstd")


def _values(value: Any, count: int) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return [value] * count
    if isinstance(value, Mapping):
        return [encoded_detail(value)] * count
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [encoded_detail(detail) for detail in value]
    return value


class RunRecorder:
    """Adds the events of a run to its trace. Without a trace it does nothing."""

    def __init__(self, world: BalanceWorld, trace: Trace | None, settings: Mapping[str, Any]) -> None:
        """`settings` are the balancing settings; the balance rows show them."""
        self._world = world
        self._settings = {name: settings[name] for name in _SHOWN if name in settings}
        self._trace = trace
        self._located = np.zeros(len(world.subscribers), dtype=np.bool_)
        """Per subscriber: True if its position is in the trace. Subscribers do not move, so one row is enough."""

    def brokers(self, now_s: float, alive: Flags, numbers: Sequence[int] | None = None) -> None:
        """Record the state of these brokers, by default of all."""
        world = self._world
        numbers = range(len(world.brokers)) if numbers is None else numbers
        details = [
            {
                "address": "",
                "capacity": float(world.capacity[j]),
                "state": "alive" if alive[j] else "dead",
                "accepting": bool(alive[j]),
            }
            for j in numbers
        ]
        places = [world.broker_places[j] for j in numbers]
        columns = {
            "broker": [world.brokers[j] for j in numbers],
            "lat": [place.lat for place in places],
            "lon": [place.lon for place in places],
            "detail": details,
        }
        self._add(now_s, Kind.BROKER, len(numbers), **columns)

    def broker_changed(self, now_s: float, kind: Kind, j: int, alive: Flags) -> None:
        """Record a broker's failure or return: `kind` is BROKER_FAILED or BROKER_BACK."""
        self._add(now_s, kind, 1, broker=self._world.brokers[j])
        self.brokers(now_s, alive, [j])

    def arrived(self, now_s: float, kind: Kind, subscribers: Longs, brokers: Ints) -> None:
        """Record arrivals: `kind` is JOIN or FAILOVER. A subscriber that no broker accepts has no broker in its row."""
        if self._trace is None:
            return
        new = subscribers[~self._located[subscribers]]
        self._located[new] = True
        lat, lon = self._world.places_deg[new].T
        detail = {"dataset": "subscribers"}
        self._add(now_s, Kind.POSITION, len(new), subscriber=self._named(new), lat=lat, lon=lon, detail=detail)
        broker, target = (brokers, None) if kind is Kind.JOIN else (None, brokers)
        self._add_subscribers(now_s, kind, subscribers, broker, target)

    def planned(self, now_s: float, plan: Plan, before: Balance, after: Balance) -> None:
        detail = {"policy": plan.policy, "cov_before": before.cov, "taken": len(plan.moves)}
        self._add(now_s, Kind.PLAN, 1, cov=after.cov, moves=len(plan.moves), note=plan.note, detail=detail)

    def moving(self, now_s: float, subscribers: Longs, source: Ints, target: Ints, reasons: list[str]) -> None:
        self._add_subscribers(now_s, Kind.MOVE, subscribers, source, target, reasons)

    def moved(self, now_s: float, subscribers: Longs, source: Ints, target: Ints) -> None:
        self._add_subscribers(now_s, Kind.MOVED, subscribers, source, target)

    def not_moved(self, now_s: float, subscribers: Longs, source: Ints, target: Ints) -> None:
        note = "the target died, or the subscriber left, before it arrived"
        self._add_subscribers(now_s, Kind.MOVE_FAILED, subscribers, source, target, note)

    def sampled(
        self, now_s: float, brokers: AggregatedBrokers, rate: Floats, balance: Balance, migrations: int, moving: int
    ) -> None:
        """Each broker's load and the balance of all. `moving`: subscribers whose hand-over is in progress."""
        if self._trace is None:
            return
        is_held = brokers.counts > 0
        incoming, outgoing = is_held @ rate, brokers.receiving @ rate
        sessions = brokers.subscribers()
        details = [
            {
                "in_bytes_per_s": float(incoming[j]),
                "out_bytes_per_s": float(outgoing[j]),
                "sessions": int(sessions[j]),
                "frontend_subscriptions": int(brokers.counts[j].sum()),
                "backend_subscriptions": int(is_held[j].sum()),
            }
            for j in range(len(sessions))
        ]
        loads = incoming + outgoing
        names = list(self._world.brokers)
        columns = {"broker": names, "load_bytes_per_s": loads, "subscribers": sessions, "detail": details}
        self._add(now_s, Kind.SAMPLE, len(sessions), **columns)
        columns = {
            "cov": balance.cov,
            "load_bytes_per_s": float(loads.mean()),
            "moves": migrations,
            "subscribers": int(sessions.sum()),
            "detail": {
                "max_bytes_per_s": float(loads.max()),
                "on": True,
                **self._settings,
                "waiting": 0,
                "under_way": moving,
            },
        }
        self._add(now_s, Kind.BALANCE, 1, **columns)

    def _add_subscribers(
        self,
        now_s: float,
        kind: Kind,
        subscribers: Longs,
        broker: Ints | None = None,
        target: Ints | None = None,
        note: list[str] | str | None = None,
    ) -> None:
        if self._trace is not None:
            columns = {"broker": self._broker_names(broker), "target": self._broker_names(target), "note": note}
            self._add(now_s, kind, len(subscribers), subscriber=self._named(subscribers), **columns)

    def _named(self, subscribers: Longs) -> list[str]:
        return [self._world.subscribers[i] for i in subscribers]

    def _broker_names(self, brokers: Ints | None) -> list[str | None] | None:
        names = self._world.brokers
        return None if brokers is None else [names[j] if j >= 0 else None for j in brokers]

    def _add(self, now_s: float, kind: Kind, count: int, **columns: Any) -> None:
        if self._trace is not None:
            self._trace.add(now_s, kind, count, columns)
