"""How a persistent topic is kept: on how many brokers, when a message is acknowledged, and how long it is retained.

    PERSISTENT [REPLICAS n [QUORUM q]] [RETAIN size | RETAIN duration | RETAIN size, duration]

A message is acknowledged when `quorum` of `replicas` brokers have it on disk [ePulsar §3.5]. Without REPLICAS the log
is on one broker: nothing acknowledged is lost, and the topic waits while that broker is down.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tocsin.model.duration import parse_duration_s

MOST_REPLICAS = 7
DEFAULT_RETAIN_BYTES = 1 << 30
LEAST_RETAIN_BYTES = 1 << 20
MOST_RETAIN_BYTES = 1 << 60
LONGEST_RETAIN_S = 1e10
_CLAUSE = re.compile(
    r"\s*(?:REPLICAS\s+(?P<replicas>\d+)(?:\s+QUORUM\s+(?P<quorum>\d+))?)?"
    r"\s*(?:RETAIN\s+(?P<retain>[^,]+?)(?:\s*,\s*(?P<more>[^,]+?))?)?\s*",
    re.IGNORECASE,
)
_SIZE = re.compile(r"(\d+)\s*(KB|MB|GB|TB)", re.IGNORECASE)
_UNITS = {"KB": 10, "MB": 20, "GB": 30, "TB": 40}


@dataclass(frozen=True, slots=True)
class Persistence:
    replicas: int = 1
    """Brokers that keep the log, the home included."""
    quorum: int = 1
    """Brokers that must have a message on disk before it is acknowledged and delivered."""
    retain_bytes: int = DEFAULT_RETAIN_BYTES
    retain_s: float | None = None
    """None keeps messages of any age."""

    @property
    def answers(self) -> int:
        """Replicas that must report their position before a new home is chosen: every quorum has one of them."""
        return self.replicas - self.quorum + 1

    def problem(self) -> str | None:
        """Why a topic cannot be kept like this; None if it can."""
        if not 1 <= self.replicas <= MOST_REPLICAS:
            return f"REPLICAS {self.replicas}: expected 1 to {MOST_REPLICAS}"
        if not 1 <= self.quorum <= self.replicas:
            return f"QUORUM {self.quorum}: expected 1 to {self.replicas}, the number of replicas"
        if self.retain_bytes < LEAST_RETAIN_BYTES:
            return "RETAIN: expected a size of at least 1 MB"
        if self.retain_bytes > MOST_RETAIN_BYTES:
            return "RETAIN: expected a size of at most a million TB"
        if self.retain_s is not None and not 0 < self.retain_s <= LONGEST_RETAIN_S:
            return "RETAIN: expected a duration above 0, of at most 300 years"
        return None


def majority(replicas: int) -> int:
    """The default quorum: nothing acknowledged is lost with the disk of a minority."""
    return replicas // 2 + 1


def parse_persistence(text: str) -> Persistence | str:
    """The clause behind PERSISTENT, or the reason why it is none."""
    match = _CLAUSE.fullmatch(text)
    if match is None:
        return "expected PERSISTENT [REPLICAS n [QUORUM q]] [RETAIN size, duration]"
    replicas = int(match["replicas"] or 1)
    quorum = int(match["quorum"] or majority(replicas))
    retain_bytes, retain_s = DEFAULT_RETAIN_BYTES, None
    for limit in (match["retain"], match["more"]):
        size = None if limit is None else _SIZE.fullmatch(limit.strip())
        if size is not None:
            retain_bytes = int(size[1]) << _UNITS[size[2].upper()]
        elif limit is not None and (retain_s := parse_duration_s(limit)) is None:
            return f"RETAIN {limit}: expected a size such as 1 GB, a duration such as 7 DAYS, or both with a comma"
    persistence = Persistence(replicas, quorum, retain_bytes, retain_s)
    return persistence.problem() or persistence
