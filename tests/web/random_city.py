"""A random city as trace rows, from a seed, for tests of the page that need no network.

It does not simulate the coordinator: people walk at random, loads follow them, and at times some people move to another
broker with a reason. docs/watching.md describes the rows.
"""

from __future__ import annotations

import math
import random
from typing import Any

Row = dict[str, Any]

_LAT, _LON = 60.170, 24.940
_KINDS = ("fire", "flood", "crash", "medical", "power outage")
_ALPHA, _GAMMA = 0.15, 0.5


class RandomCity:
    def __init__(self, people: int = 1_500, brokers: int = 4, seed: int = 7) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.brokers = [f"broker-{number + 1}" for number in range(brokers)]
        self.sites = [
            (_LAT + 0.022 * math.sin(2.4 * n + 0.4), _LON + 0.05 * math.cos(2.4 * n + 0.4)) for n in range(brokers)
        ]
        self.places = [self._random_place() for _ in range(people)]
        self.homes = [self._nearest(place) for place in self.places]
        self.moves = 0
        self.executions = 0
        self.states = dict.fromkeys(self.brokers, "alive")

    def _random_place(self) -> tuple[float, float]:
        if self.random.random() < 0.35:  # downtown, so that loads are uneven
            return _LAT + self.random.gauss(0.004, 0.006), _LON + self.random.gauss(0.02, 0.014)
        return _LAT + self.random.uniform(-0.033, 0.033), _LON + self.random.uniform(-0.075, 0.075)

    def _nearest(self, place: tuple[float, float]) -> int:
        return min(range(len(self.sites)), key=lambda n: math.dist(place, self.sites[n]))

    def row(self, kind: str, **columns: Any) -> Row:
        return {"time_s": self.now_s, "kind": kind, **columns}

    # -- the picture ---------------------------------------------------------------------------------------------------

    def picture(self) -> list[Row]:
        rows = [self.row("street", detail={"line": line}) for line in self._streets()]
        rows += [self._shelter(number) for number in range(9)]
        rows += [self.broker_row(number) for number in range(len(self.brokers))]
        for number, home in enumerate(self.homes):
            rows.append(self.row("join", subscriber=f"p{number}", broker=self.brokers[home]))
            rows.append(self._position(number))
        return rows + self.samples() + self.channels() + self.topics()

    def topics(self) -> list[Row]:
        """Two topics: one keeps its bound, one is late and has clients on the map."""
        even = {"within_s": None, "persistent": True, "replicas": self.brokers[:2], "senders": 1, "receivers": 2}
        late = {"within_s": 0.04, "persistent": False, "replicas": [], "worst_s": 0.065, "senders": 1, "receivers": 3}
        clients = {"publishers": ["p1"], "subscribers": ["p2", "p3", "p4"]}
        return [
            self.row("topic", broker=self.brokers[0], detail={"topic": "orders", "messages_per_s": 2.0, **even}),
            self.row("topic", broker=self.brokers[1], detail={"topic": "swarm/3/leader", **late, **clients}),
        ]

    def _streets(self) -> list[list[list[float]]]:
        lines = []
        for step in range(-7, 8):
            lat, lon = _LAT + step * 0.0045, _LON + step * 0.0105
            wave = [_LON - 0.078 + n * 0.0078 for n in range(21)]
            lines.append([[lat + 0.0012 * math.sin(n + step), at] for n, at in enumerate(wave)])
            lines.append([[_LAT - 0.034 + n * 0.0034, lon + 0.002 * math.cos(n * 0.7 + step)] for n in range(21)])
        return lines

    def _shelter(self, number: int) -> Row:
        lat, lon = _LAT + self.random.uniform(-0.028, 0.028), _LON + self.random.uniform(-0.065, 0.065)
        detail = {"dataset": "Shelters", "capacity": 50 * (number + 1)}
        return self.row("place", note=f"Shelter {number + 1}", lat=lat, lon=lon, detail=detail)

    def broker_row(self, number: int) -> Row:
        state = self.states[self.brokers[number]]
        detail = {"address": "ws://127.0.0.1:1", "capacity": 1.0, "state": state, "accepting": state == "alive"}
        lat, lon = self.sites[number]
        return self.row("broker", broker=self.brokers[number], lat=lat, lon=lon, detail=detail)

    def _position(self, number: int) -> Row:
        lat, lon = self.places[number]
        return self.row("position", subscriber=f"p{number}", lat=lat, lon=lon, detail={"dataset": "UserLocations"})

    def channels(self) -> list[Row]:
        rows = []
        for number, name in enumerate(("EmergenciesOfType", "EmergenciesNearMe", "EmergenciesOfTypeAtLocation")):
            detail = {
                "period_s": 10.0 * (number + 1),
                "subscriptions": 40 * (number + 2),
                "executions": self.executions,
                "missed_ticks": number // 2,
                "late_since_s": self.now_s - 25 if number == 1 else None,
                "last_started_s": self.now_s - 3 * number,
                "last_duration_s": 0.4 + number,
                "last_results": 120 * number,
                "state": "running",
            }
            rows.append(self.row("channel", channel=name, detail=detail))
        spark = {"version": "4.3.0", "master": "local[2]", "active_jobs": 1}
        cluster = {"ready": True, "reasons": [], "spark": spark, "records_per_s": 42.5}
        return [*rows, self.row("cluster", detail=cluster)]

    # -- a second ------------------------------------------------------------------------------------------------------

    def second(self) -> list[Row]:
        """The rows of the next second."""
        self.now_s += 1.0
        rows = [self.row("tick")]
        for number in range(len(self.places)):
            lat, lon = self.places[number]
            self.places[number] = (lat + self.random.gauss(0, 0.00012), lon + self.random.gauss(0, 0.00024))
            rows.append(self._position(number))
        rows += self.samples()
        if self.random.random() < 0.5:
            rows.append(self._event())
        if self.random.random() < 0.25:
            rows += self._balance_step()
        if self.random.random() < 0.5:
            self.executions += 1
            rows += self.channels()
        return rows

    def _event(self) -> Row:
        lat, lon = self._random_place()
        kind, severity = self.random.choice(_KINDS), self.random.randint(1, 5)
        detail = {"dataset": "EmergencyReports", "severity": severity, "message": f"{kind} reported"}
        return self.row("event", lat=lat, lon=lon, note=kind, detail=detail)

    def loads(self) -> list[float]:
        crowd = [self.homes.count(n) for n in range(len(self.brokers))]
        return [90.0 * people * (1 + 0.15 * math.sin(self.now_s / 9 + n)) for n, people in enumerate(crowd)]

    def samples(self) -> list[Row]:
        loads = self.loads()
        mean = sum(loads) / len(loads)
        cov = math.sqrt(sum((load - mean) ** 2 for load in loads) / len(loads)) / mean if mean else 0.0
        rows = []
        for number, load in enumerate(loads):
            people = self.homes.count(number)
            p50 = 0.004 + load / 9e6
            detail = {
                "in_bytes_per_s": load / 4,
                "out_bytes_per_s": load * 3 / 4,
                "sessions": people,
                "frontend_subscriptions": people * 2,
                "backend_subscriptions": 60 + number,
                "notifications_per_s": load / 450,
                "delivery_s_p50": p50,
                "delivery_s_p95": p50 * 4,
            }
            columns: Row = {"broker": self.brokers[number], "load_bytes_per_s": load, "subscribers": people}
            rows.append(self.row("sample", **columns, detail=detail))
        settings: Row = {
            "max_bytes_per_s": max(loads),
            "on": True,
            "scheme": "ldm",
            "shuffle": "gsh",
            "alpha": _ALPHA,
            "beta_bytes_per_s": 1000.0,
            "gamma": _GAMMA,
            "theta_bytes_per_s": 1000.0,
            "placement": "nearest",
            "waiting": 0,
            "under_way": 0,
        }
        totals: Row = {"cov": cov, "load_bytes_per_s": mean, "subscribers": len(self.homes), "moves": self.moves}
        return [*rows, self.row("balance", **totals, detail=settings)]

    def _balance_step(self) -> list[Row]:
        loads = self.loads()
        source, target = loads.index(max(loads)), loads.index(min(loads))
        movers = [n for n, home in enumerate(self.homes) if home == source][:12]
        reason = f"{self.brokers[source]} carries {loads[source] / 1000:.0f} kB/s, {self.brokers[target]} the least"
        rows = []
        for number in movers:
            move: Row = {"subscriber": f"p{number}", "broker": self.brokers[source], "target": self.brokers[target]}
            rows += [self.row("move", **move, note=reason), self.row("moved", **move)]
            self.homes[number] = target
            self.moves += 1
        detail = {"policy": "ldm", "cov_before": 0.31, "taken": len(movers)}
        return [*rows, self.row("plan", cov=0.27, moves=len(movers), note="cov above alpha", detail=detail)]


class RandomSite(RandomCity):
    """The same as a site: a head, an edge, a standby, and two neighbouring sites."""

    def broker_row(self, number: int) -> Row:
        row = super().broker_row(number)
        row["detail"] |= {"role": "edge" if number else "head", "standby": number == 2}
        return row

    def samples(self) -> list[Row]:
        rows = super().samples()
        for number, row in enumerate(row for row in rows if row["kind"] == "sample"):
            used = (0.41, 0.97, 0.62)[number % 3]
            row["detail"]["site"] = {
                "state": "OVERLOAD" if used > 0.95 else "LOW",
                "Ui": 0.0,
                "Uo": used,
                "Um": 0.2,
                "offered": {"in_bytes_per_s": 2e5, "out_bytes_per_s": used * 1.6e6, "matched_per_s": 200.0},
                "capacity": {"in_bytes_per_s": None, "out_bytes_per_s": 1.6e6, "matched_per_s": 1000.0},
                "waiting_bytes": 12_000,
                "waiting_messages": 0,
                "limited_publishers": 3 if number == 0 else 0,
            }
        common = {"since_s": self.now_s, "restarts": 0}
        other = {"Ui": 0.1, "Um": 0.2}
        brokers = [
            {"broker": "broker-1", "role": "head", "state": "LOW", "Uo": 0.33, **other},
            {"broker": "broker-2", "role": "edge", "state": "BUSY", "Uo": 0.88, **other},
        ]
        counts: dict[str, object] = {"flows": 4, "messages": 1234, "repeated": 2, "round_trip_s": 0.042}
        up: dict[str, object] = {"site": "rtwc1", "state": "up", **counts, "brokers": brokers, **common}
        none: dict[str, object] = {"flows": 0, "messages": 0, "repeated": 0, "round_trip_s": None}
        down: dict[str, object] = {"site": "ntwc2", "state": "down", **none, "brokers": [], **common}
        detail = {"site": "ntwc1", "neighbours": [up, down]}
        return [*rows, self.row("sites", detail=detail)]
