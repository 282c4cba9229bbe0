"""What a simulated run tells of itself, as rows of its trace. `balance_run` calls it; it decides nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.model.plan import Balance, Plan
from tocsin.model.snapshot import Flags, Floats, Ints
from tocsin.model.trace import Kind
from tocsin.policies.balance.load import Longs
from tocsin.sim.balance.brokers import AggregatedBrokers
from tocsin.sim.balance.trace import Trace
from tocsin.sim.balance.world import BalanceWorld

_SHOWN = ("scheme", "shuffle", "alpha", "beta_bytes_per_s", "gamma", "theta_bytes_per_s", "placement")


class Telling:
    """Without a trace it does nothing."""

    def __init__(self, world: BalanceWorld, trace: Trace | None, settings: dict[str, Any]) -> None:
        """`settings` is how balancing is set, to be shown with the balance."""
        self._world = world
        self._settings = {name: settings[name] for name in _SHOWN if name in settings}
        self._trace = trace
        self._located = np.zeros(len(world.subscribers), dtype=np.bool_)
        """Whose place has been told: nobody moves about in this model, so once is enough."""

    def brokers(self, now_s: float, alive: Flags, which: list[int] | None = None) -> None:
        """All of them at the start, or those that changed."""
        world = self._world
        numbers = list(range(len(world.brokers))) if which is None else which
        details = [
            {
                "address": "",
                "capacity": float(world.capacity[j]),
                "state": "alive" if alive[j] else "dead",
                "accepting": bool(alive[j]),
            }
            for j in numbers
        ]
        self._add(
            now_s, Kind.BROKER, len(numbers), broker=[world.brokers[j] for j in numbers],
            lat=[world.broker_places[j].lat for j in numbers], lon=[world.broker_places[j].lon for j in numbers],
            detail=details,
        )  # fmt: skip

    def failed(self, now_s: float, j: int, alive: Flags) -> None:
        self._add(now_s, Kind.BROKER_FAILED, 1, broker=self._world.brokers[j])
        self.brokers(now_s, alive, [j])

    def back(self, now_s: float, j: int, alive: Flags) -> None:
        self._add(now_s, Kind.BROKER_BACK, 1, broker=self._world.brokers[j])
        self.brokers(now_s, alive, [j])

    def arrived(self, now_s: float, kind: Kind, who: Longs, brokers: Ints) -> None:
        """`join` or `failover`; whoever nobody accepts has no broker in its row."""
        if self._trace is None:
            return
        new = who[~self._located[who]]
        self._located[new] = True
        places = self._world.places_deg[new]
        self._add(
            now_s, Kind.POSITION, len(new), subscriber=self._people(new), lat=places[:, 0], lon=places[:, 1],
            detail={"dataset": "subscribers"},
        )  # fmt: skip
        if kind is Kind.JOIN:
            self._people_rows(now_s, kind, who, broker=brokers)
        else:
            self._people_rows(now_s, kind, who, target=brokers)

    def left(self, now_s: float, who: Longs, brokers: Ints) -> None:
        self._people_rows(now_s, Kind.LEAVE, who, broker=brokers)

    def planned(self, now_s: float, plan: Plan, before: Balance, after: Balance) -> None:
        self._add(
            now_s, Kind.PLAN, 1, cov=after.cov, moves=len(plan.moves), note=plan.note,
            detail={"policy": plan.policy, "cov_before": before.cov, "taken": len(plan.moves)},
        )  # fmt: skip

    def moves(self, now_s: float, who: Longs, source: Ints, target: Ints, reasons: list[str]) -> None:
        self._people_rows(now_s, Kind.MOVE, who, broker=source, target=target, note=reasons)

    def moved(self, now_s: float, who: Longs, source: Ints, target: Ints) -> None:
        self._people_rows(now_s, Kind.MOVED, who, broker=source, target=target)

    def not_moved(self, now_s: float, who: Longs, source: Ints, target: Ints) -> None:
        why = "the target died, or the subscriber left, before it arrived"
        self._people_rows(now_s, Kind.MOVE_FAILED, who, broker=source, target=target, note=why)

    def measured(
        self, now_s: float, brokers: AggregatedBrokers, rate: Floats, balance: Balance, migrations: int, under_way: int
    ) -> None:
        if self._trace is None:
            return
        held = brokers.counts > 0
        incoming, outgoing = held @ rate, brokers.counts @ rate
        people = brokers.subscribers()
        details = [
            {
                "in_bytes_per_s": float(incoming[j]),
                "out_bytes_per_s": float(outgoing[j]),
                "sessions": int(people[j]),
                "frontend_subscriptions": int(brokers.counts[j].sum()),
                "backend_subscriptions": int(held[j].sum()),
            }
            for j in range(len(people))
        ]
        loads = incoming + outgoing
        self._add(
            now_s, Kind.SAMPLE, len(people), broker=list(self._world.brokers), load_bytes_per_s=loads,
            subscribers=people, detail=details,
        )  # fmt: skip
        self._add(
            now_s, Kind.BALANCE, 1, cov=balance.cov, load_bytes_per_s=float(loads.mean()), moves=migrations,
            subscribers=int(people.sum()),
            detail={
                "max_bytes_per_s": float(loads.max()), "on": True, **self._settings, "waiting": 0,
                "under_way": under_way,
            },
        )  # fmt: skip

    def _people(self, who: Longs) -> list[str]:
        return [self._world.subscribers[i] for i in who]

    def _people_rows(
        self, now_s: float, kind: Kind, who: Longs, *, broker: Ints | None = None, target: Ints | None = None,
        note: list[str] | str | None = None,
    ) -> None:  # fmt: skip
        if self._trace is not None:
            self._add(
                now_s, kind, len(who), subscriber=self._people(who), broker=self._names(broker),
                target=self._names(target), note=note,
            )  # fmt: skip

    def _names(self, brokers: Ints | None) -> list[str | None] | None:
        names = self._world.brokers
        return None if brokers is None else [names[j] if j >= 0 else None for j in brokers]

    def _add(self, now_s: float, kind: Kind, count: int, **columns: Any) -> None:
        if self._trace is not None:
            self._trace.add(now_s, kind, count, columns)
