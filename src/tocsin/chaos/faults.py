"""The schedule of faults, drawn from a seed. Pure; `injection` injects them."""

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
    KILL_BOTH = "kill coordinator and broker"
    """kill -9 of the coordinator and a broker at the same moment."""
    KILL_JVM = "kill jvm"
    """kill -9 of Spark's JVM; the Python process of the data cluster lives on."""
    FREEZE_JVM = "freeze jvm"
    """SIGSTOP of Spark's JVM, later SIGCONT. A long freeze exceeds the data cluster's deadline."""
    TORN_WRITE = "torn write"
    """kill -9 of the data cluster in the middle of writes: half of a frame stays at the end of its logs."""
    FULL_DISK = "full disk"
    """The kernel refuses every write of the data cluster to a file."""
    SLOW_DISK = "slow disk"
    """Each fsync of the data cluster takes longer."""
    CLOCK_STEP = "clock step"
    """The wall clock of the data cluster steps by minutes or an hour, and back."""
    PARTITION = "partition"
    """Two processes cannot reach each other."""
    LOST_ANSWER = "lost answer"
    """A request succeeds, its answer is sent, and the connection breaks before the client has the answer."""
    MIGRATE = "migrate"
    """Move some subscribers to other brokers through the coordinator's API."""
    DRAIN = "drain"
    """Drain a broker through the API, and stop draining later."""
    DROP = "drop"
    """Break the connections of some subscribers."""
    RETURN = "return"
    """Some subscribers log out and return later with their state file."""


PROCESS_FAULTS = (FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)
OF_CLUSTER = (
    FaultKind.KILL_JVM,
    FaultKind.TORN_WRITE,
    FaultKind.FREEZE_JVM,
    FaultKind.FULL_DISK,
    FaultKind.SLOW_DISK,
    FaultKind.CLOCK_STEP,
    *PROCESS_FAULTS,
)
"""The faults of the data cluster, in the order of the rounds."""
_OF_COORDINATOR = (FaultKind.KILL_BOTH, *PROCESS_FAULTS)
_CLIENTS = (FaultKind.DROP, FaultKind.RETURN)
_LASTING = frozenset(
    {
        FaultKind.PAUSE,
        FaultKind.FREEZE_JVM,
        FaultKind.FULL_DISK,
        FaultKind.SLOW_DISK,
        FaultKind.CLOCK_STEP,
        FaultKind.PARTITION,
        FaultKind.DRAIN,
        FaultKind.RETURN,
    }
)
_STEPS_S = (3600.0, -3600.0, 90.0, -90.0)


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    """Seconds from the start of the round."""
    kind: FaultKind
    target: str
    """Name of a process, or two names with a ">" between them for faults of their connection."""
    lasting_s: float
    share: float
    """Share of the subscribers that a fault of subscribers hits."""
    step_s: float = 0.0
    """How far a clock steps."""

    @property
    def name(self) -> str:
        """The name under which the report counts the fault."""
        if self.kind not in PROCESS_FAULTS:
            return str(self.kind)
        return f"{self.kind} {'broker' if self.target.startswith('broker') else self.target}"

    def __str__(self) -> str:
        lasting = f" for {self.lasting_s:.1f} s" if self.kind in _LASTING else ""
        step = f" of {self.step_s:+.0f} s" if self.kind is FaultKind.CLOCK_STEP else ""
        shows_target = self.kind in (*PROCESS_FAULTS, FaultKind.PARTITION, FaultKind.LOST_ANSWER, FaultKind.DRAIN)
        return f"{self.kind}{f' {self.target}' if shows_target else ''}{step}{lasting}"


def schedule(
    seed: int, rounds: int, round_s: float, brokers: Sequence[str], links: Sequence[str], *, cluster: bool
) -> Iterator[list[Fault]]:
    """Yield the faults of each round, in order of time.

    Each round moves subscribers, hits a broker, connections of subscribers, a link between two processes (one of
    `links`, if there are any) and, with `cluster`, the data cluster. Every third round drains a broker, and every
    second one hits the coordinator. Kinds take turns, so that few rounds cover every kind; `seed` decides the targets
    and times.
    """
    rng = random.Random(seed)
    for number in range(rounds):
        in_turn = PROCESS_FAULTS[number % 3]
        faults = [
            _fault(rng, round_s, in_turn if number < 6 else rng.choice(PROCESS_FAULTS), rng.choice(brokers)),
            # Early, while target brokers are still up: the later faults then hit migrations in progress.
            _fault(rng, 0.2 * round_s, FaultKind.MIGRATE, rng.choice(brokers)),
            _fault(rng, round_s, _CLIENTS[number % 2], rng.choice(brokers)),
        ]
        if number % 3 == 1:
            faults.append(_fault(rng, round_s, FaultKind.DRAIN, rng.choice(brokers)))
        if number % 2 == 1:
            faults.append(_fault(rng, round_s, _OF_COORDINATOR[number // 2 % 4], "coordinator"))
        if links:
            kind = (FaultKind.PARTITION, FaultKind.LOST_ANSWER)[number % 2]
            faults.append(_fault(rng, round_s, kind, links[(number // 2 + seed) % len(links)]))
        if cluster:
            faults.append(_fault(rng, round_s, OF_CLUSTER[number % len(OF_CLUSTER)], "cluster"))
        yield sorted(faults, key=lambda fault: fault.at_s)


def _fault(rng: random.Random, round_s: float, kind: FaultKind, target: str) -> Fault:
    at_s, lasting_s, share = rng.uniform(0, 0.6 * round_s), rng.uniform(0.2, 0.7) * round_s, rng.uniform(0.2, 0.6)
    step_s = rng.choice(_STEPS_S) if kind is FaultKind.CLOCK_STEP else 0.0
    if kind is FaultKind.FREEZE_JVM and rng.random() < 0.5:
        lasting_s *= 3  # longer than the deadline
    return Fault(at_s, kind, target, lasting_s, share, step_s)
