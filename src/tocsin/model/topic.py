"""Topics: names with levels, patterns with wildcards, positions, and the statement that declares a topic [ePulsar §3].

A name has levels separated by `/`, as in MQTT: `swarm/3/leader`. In a pattern `+` matches one level, and `#` as the
last level matches any number of levels, also none: `swarm/#` matches `swarm` and `swarm/3/leader`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from tocsin.model.duration import parse_duration_s
from tocsin.model.ids import DatasetName, TopicName
from tocsin.model.schema import is_name
from tocsin.model.topic_persistence import Persistence, parse_persistence

MOST_CHARACTERS = 200
MOST_LEVELS = 16
LONGEST_BOUND_S = 3_600.0
CONTROL_PREFIX = "~24mqtt/"
"""Topics by which the brokers' MQTT parts talk to each other; in MQTT `$mqtt/`. They are created on first use."""
_LEVEL = re.compile(r"[A-Za-z0-9._~-]+")
_STATEMENT = re.compile(
    r"\s*CREATE\s+TOPIC\s+(?P<name>[^\s;]+)(?:\s+WITHIN\s+(?P<bound>[^;]+?))?"
    r"(?:\s+DELAY\s+(?P<delay>[^;]+?))?(?:\s+PROTECTED\s+(?P<protected>[^;]+?))?"
    r"(?:\s+PERSISTENT(?P<log>(?:\s[^;]*?)?))?(?:\s+RECORD\s+INTO\s+(?P<dataset>[^\s;]+))?\s*;?\s*",
    re.IGNORECASE,
)
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s+PER\s+(SECOND|MINUTE|HOUR)\s*", re.IGNORECASE)
_PERIODS_S = {"SECOND": 1.0, "MINUTE": 60.0, "HOUR": 3_600.0}
HIGHEST_RATE_PER_S = 1_000_000.0
_SHORT_BOUND = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(M?)S\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A message's place in its topic: the epoch of the home that ordered it, and its number there."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.sequence}"


BEGINNING = Position(0, 0)
"""In front of every message of a topic."""


def parse_position(text: str) -> Position | None:
    """A position as it is printed, such as `12-345`; None if the text is none."""
    epoch, dash, sequence = text.partition("-")
    is_position = dash and epoch.isascii() and epoch.isdigit() and sequence.isascii() and sequence.isdigit()
    return Position(int(epoch), int(sequence)) if is_position else None


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    name: TopicName
    within_s: float | None = None
    """Bound on the time from publishing a message to receiving it; None for none."""
    persistence: Persistence | None = None
    """None for a volatile topic, which is kept in the memory of its home alone."""
    record_into: DatasetName | None = None
    """The dataset that gets every message as a record; None for none."""
    delay_s: float | None = None
    """The delay that its receivers tolerate at most: a site moves the receivers of tolerant topics first; None for any
    delay."""
    protected_per_s: float | None = None
    """The rate in messages/s that its publishers keep together in any congestion; None for no guarantee."""


def topic_problem(name: str) -> str | None:
    """Why this is not the name of a topic; None if it is one."""
    return _problem(name, wildcards=False)


def pattern_problem(pattern: str) -> str | None:
    """Why this is not a pattern; None if it is one. Every name is a pattern that matches itself."""
    return _problem(pattern, wildcards=True)


def _problem(text: str, *, wildcards: bool) -> str | None:
    if not 1 <= len(text) <= MOST_CHARACTERS:
        return f"a topic has 1 to {MOST_CHARACTERS} characters"
    levels = text.split("/")
    if len(levels) > MOST_LEVELS:
        return f"a topic has at most {MOST_LEVELS} levels"
    for index, level in enumerate(levels):
        if wildcards and (level == "+" or (level == "#" and index == len(levels) - 1)):
            continue
        if _LEVEL.fullmatch(level) is None:
            allowed = "; + stands for one level, # for the rest" if wildcards else ""
            return f"a level of a topic has letters, digits, dots, dashes, tildes and underscores{allowed}: {level!r}"
    return None


def is_exact(pattern: str) -> bool:
    """True if the pattern has no wildcard: it names one topic."""
    return "+" not in pattern and "#" not in pattern


def matches(pattern: str, name: str) -> bool:
    if is_exact(pattern):
        return pattern == name
    expected, levels = pattern.split("/"), name.split("/")
    if expected[-1] == "#":
        expected = expected[:-1]
        if len(levels) < len(expected):
            return False
        levels = levels[: len(expected)]
    return len(expected) == len(levels) and all(
        part in ("+", level) for part, level in zip(expected, levels, strict=True)
    )


def publisher_id(user: str, run: int) -> int:
    """The publisher's number in messages, below 2**53: the same at every home, and no other user can take it."""
    digest = hashlib.blake2b(f"{run}\x1f{user}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 11


def parse_create_topic(text: str) -> TopicDefinition | str:
    """The definition in `CREATE TOPIC name [WITHIN 40 MS] [DELAY 1 S] [PROTECTED 5 PER SECOND] [PERSISTENT …]
    [RECORD INTO dataset];`, or the reason why the text is none."""
    match = _STATEMENT.fullmatch(text)
    if match is None:
        clauses = "[WITHIN duration] [DELAY duration] [PROTECTED number PER SECOND] [PERSISTENT …]"
        return f"expected CREATE TOPIC name {clauses} [RECORD INTO dataset];"
    problem = topic_problem(match["name"])
    if problem is not None:
        return problem
    within_s = None if match["bound"] is None else parse_bound_s(match["bound"])
    if within_s is None and match["bound"] is not None:
        return f"WITHIN {match['bound'].strip()}: expected a duration such as 40 MS, up to an hour"
    delay_s = None if match["delay"] is None else parse_bound_s(match["delay"])
    if delay_s is None and match["delay"] is not None:
        return f"DELAY {match['delay'].strip()}: expected a duration such as 1 S, up to an hour"
    protected_per_s = None if match["protected"] is None else parse_rate_per_s(match["protected"])
    if protected_per_s is None and match["protected"] is not None:
        return f"PROTECTED {match['protected'].strip()}: expected a rate such as 5 PER SECOND"
    persistence = None if match["log"] is None else parse_persistence(match["log"])
    if isinstance(persistence, str):
        return persistence
    if match["dataset"] is not None and not is_name(match["dataset"]):
        return f"RECORD INTO {match['dataset']}: expected the name of a dataset"
    dataset = None if match["dataset"] is None else DatasetName(match["dataset"])
    return TopicDefinition(TopicName(match["name"]), within_s, persistence, dataset, delay_s, protected_per_s)


def parse_bound_s(text: str) -> float | None:
    """A latency bound such as `40 MS` in seconds; None if it is no duration, or longer than an hour."""
    short = _SHORT_BOUND.fullmatch(text)
    within_s = parse_duration_s(text) if short is None else float(short[1]) * (0.001 if short[2] else 1.0)
    return within_s if within_s is not None and 0.0 < within_s <= LONGEST_BOUND_S else None


def parse_rate_per_s(text: str) -> float | None:
    """A rate such as `5 PER SECOND` in messages/s; None if it is no positive rate, or above a million."""
    match = _RATE.fullmatch(text)
    per_s = 0.0 if match is None else float(match[1]) / _PERIODS_S[match[2].upper()]
    return per_s if 0.0 < per_s <= HIGHEST_RATE_PER_S else None
