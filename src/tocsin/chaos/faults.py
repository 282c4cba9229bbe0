"""The schedule of faults, drawn from a seed. Pure; `run` injects them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    KILL = "kill"
    """kill -9; the supervisor restarts the process."""
    PAUSE = "pause"
    """SIGSTOP, later SIGCONT: the process keeps its connections and sends nothing."""
    RESTART = "restart"
    """SIGTERM; the supervisor restarts the process."""
    MIGRATE = "migrate"
    """Move some subscribers to other brokers through the coordinator's API."""
    DRAIN = "drain"
    """Drain a broker through the API, and stop draining later."""
    DROP = "drop"
    """Break the connections of some subscribers."""
    RETURN = "return"
    """Some subscribers log out and return later with their state file."""


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    """Seconds from the start of the round."""
    kind: FaultKind
    target: str
    """Name of a process; unused for faults of subscribers."""
    lasting_s: float
    share: float
    """Share of the subscribers that a fault of subscribers hits."""

    def __str__(self) -> str:
        lasting = (
            f" for {self.lasting_s:.1f} s" if self.kind in (FaultKind.PAUSE, FaultKind.DRAIN, FaultKind.RETURN) else ""
        )
        target = "subscribers" if self.kind in (*_CLIENTS, FaultKind.MIGRATE) else self.target
        return f"{self.kind} {target}{lasting}"


PROCESS_FAULTS = (FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)
_LASTING = (FaultKind.PAUSE, FaultKind.DRAIN, FaultKind.RETURN)
_CLIENTS = (FaultKind.DROP, FaultKind.RETURN)


def schedule(seed: int, rounds: int, round_s: float, brokers: Sequence[str], *, cluster: bool) -> Iterator[list[Fault]]:
    """Yield the faults of each round, in order of time.

    Each round moves subscribers, hits a broker and hits connections. Every third round drains a broker, every second
    one hits the coordinator and, with `cluster`, every third one the data cluster. Kinds take turns, so that a few
    rounds cover every kind; `seed` decides the targets and times.
    """
    rng = random.Random(seed)
    for number in range(rounds):
        in_turn = PROCESS_FAULTS[number % 3]
        faults = [
            _fault(rng, round_s, in_turn if number < 3 else rng.choice(PROCESS_FAULTS), rng.choice(brokers)),
            # Early, while target brokers are still up: the later faults then hit migrations in progress.
            _fault(rng, 0.2 * round_s, FaultKind.MIGRATE, rng.choice(brokers)),
            _fault(rng, round_s, _CLIENTS[number % 2], rng.choice(brokers)),
        ]
        if number % 3 == 1:
            faults.append(_fault(rng, round_s, FaultKind.DRAIN, rng.choice(brokers)))
        if number % 2 == 1:
            faults.append(_fault(rng, round_s, PROCESS_FAULTS[number // 2 % 3], "coordinator"))
        if cluster and number % 3 == 2:
            faults.append(_fault(rng, round_s, PROCESS_FAULTS[number // 3 % 3], "cluster"))
        yield sorted(faults, key=lambda fault: fault.at_s)


def _fault(rng: random.Random, round_s: float, kind: FaultKind, target: str) -> Fault:
    return Fault(rng.uniform(0, 0.6 * round_s), kind, target, rng.uniform(0.2, 0.7) * round_s, rng.uniform(0.2, 0.6))
