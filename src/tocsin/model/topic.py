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
    r"(?:\s+PERSISTENT(?P<log>(?:\s[^;]*?)?))?(?:\s+RECORD\s+INTO\s+(?P<dataset>[^\s;]+))?\s*;?\s*",
    re.IGNORECASE,
)
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
    """The definition in `CREATE TOPIC name [WITHIN 40 MS] [PERSISTENT …] [RECORD INTO dataset];`, or the reason why the
    text is none."""
    match = _STATEMENT.fullmatch(text)
    if match is None:
        return "expected CREATE TOPIC name [WITHIN duration] [PERSISTENT …] [RECORD INTO dataset];"
    problem = topic_problem(match["name"])
    if problem is not None:
        return problem
    within_s = None if match["bound"] is None else parse_bound_s(match["bound"])
    if within_s is None and match["bound"] is not None:
        return f"WITHIN {match['bound'].strip()}: expected a duration such as 40 MS, up to an hour"
    persistence = None if match["log"] is None else parse_persistence(match["log"])
    if isinstance(persistence, str):
        return persistence
    if match["dataset"] is not None and not is_name(match["dataset"]):
        return f"RECORD INTO {match['dataset']}: expected the name of a dataset"
    dataset = None if match["dataset"] is None else DatasetName(match["dataset"])
    return TopicDefinition(TopicName(match["name"]), within_s, persistence, dataset)


def parse_bound_s(text: str) -> float | None:
    """A latency bound such as `40 MS` in seconds; None if it is no duration, or longer than an hour."""
    short = _SHORT_BOUND.fullmatch(text)
    within_s = parse_duration_s(text) if short is None else float(short[1]) * (0.001 if short[2] else 1.0)
    return within_s if within_s is not None and 0.0 < within_s <= LONGEST_BOUND_S else None
