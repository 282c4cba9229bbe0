"""Which faults happen when: a schedule from a seed. Pure; `run` carries it out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    KILL = "kill"
    """kill -9; the supervisor starts it again."""
    PAUSE = "pause"
    """SIGSTOP, later SIGCONT: alive to the kernel, silent to everybody else."""
    RESTART = "restart"
    """SIGTERM; the supervisor starts it again."""
    MIGRATE = "migrate"
    """Some subscribers, each to a broker where it is not, through the coordinator's API."""
    DRAIN = "drain"
    """A broker, through the API, and later no more."""
    DROP = "drop"
    """Some subscribers' connections break."""
    RETURN = "return"
    """Some subscribers log out, are away for a while and come back with what they remembered in a file."""


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    """From the start of its round."""
    kind: Kind
    target: str
    """A process; means nothing for faults of subscribers."""
    lasting_s: float
    share: float
    """Of the subscribers it concerns."""

    def __str__(self) -> str:
        lasting = f" for {self.lasting_s:.1f} s" if self.kind in (Kind.PAUSE, Kind.DRAIN, Kind.RETURN) else ""
        target = "subscribers" if self.kind in (*_CLIENTS, Kind.MIGRATE) else self.target
        return f"{self.kind} {target}{lasting}"


_PROCESS = (Kind.KILL, Kind.PAUSE, Kind.RESTART)
_CLIENTS = (Kind.DROP, Kind.RETURN)


def schedule(seed: int, rounds: int, round_s: float, brokers: Sequence[str], *, cluster: bool) -> Iterator[list[Fault]]:
    """Each round moves subscribers and hits a broker and connections; some drain a broker; every second one hits the
    coordinator, every third the data cluster.

    What is hit how is taken in turn, so that a few rounds see every kind; where and when is up to the dice.
    """
    dice = random.Random(seed)
    for number in range(rounds):
        faults = [
            _fault(dice, round_s, _PROCESS[number % 3] if number < 3 else dice.choice(_PROCESS), dice.choice(brokers)),
            # Early, while there are brokers to go to: the other faults then hit moves that are under way.
            _fault(dice, 0.2 * round_s, Kind.MIGRATE, dice.choice(brokers)),
            _fault(dice, round_s, _CLIENTS[number % 2], dice.choice(brokers)),
        ]
        if number % 3 == 1:
            faults.append(_fault(dice, round_s, Kind.DRAIN, dice.choice(brokers)))
        if number % 2 == 1:
            faults.append(_fault(dice, round_s, _PROCESS[number // 2 % 3], "coordinator"))
        if cluster and number % 3 == 2:
            faults.append(_fault(dice, round_s, _PROCESS[number // 3 % 3], "cluster"))
        yield sorted(faults, key=lambda fault: fault.at_s)


def _fault(dice: random.Random, round_s: float, kind: Kind, target: str) -> Fault:
    return Fault(dice.uniform(0, 0.6 * round_s), kind, target, dice.uniform(0.2, 0.7) * round_s, dice.uniform(0.2, 0.6))
