"""Scenario files of the broker network: brokers, subscribers, channels, bursts, churn and failures.

A scenario is a TOML file; the shipped ones are in `sim/balance/scenarios/` and have names. This module reads and
checks them; `world` draws a world from a scenario and a seed. An unknown key is refused: a misspelt key would otherwise
be ignored and its default used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class BadScenario(ValueError):
    """A scenario file that cannot be used. The message names the file and the necessary change."""


@dataclass(frozen=True, slots=True)
class Brokers:
    count: int
    crowd: tuple[float, ...] = ()
    """The share of subscribers that are near each broker; shorter lists are repeated. Empty: equal shares. With nearest
    placement a broker gets about this share: geographic skew."""
    capacity: tuple[float, ...] = ()
    """Relative capacity of each broker; shorter lists are repeated. Empty: all equal."""
    scatter: float = 0.15
    """How far a subscriber is from its nearest broker: standard deviation, relative to the distance between
    neighbouring brokers."""


@dataclass(frozen=True, slots=True)
class Subscribers:
    count: int
    channels: tuple[int, int] = (0, 0)
    """The number of channels of a subscriber, from–to; 0: any."""
    subscriptions: tuple[int, int] = (1, 1)
    """The number of subscriptions, from–to: per channel if `channels` is given, otherwise in total."""
    join_within_s: float = 1.0
    subscribe_from_s: float = 1.0
    subscribe_until_s: float = 60.0
    neighbourhoods: int = 0
    """Number of groups of subscribers that are close together and share most interests. 0: no groups."""
    own_share: float = 0.8
    """The share of a subscriber's interests that come from its neighbourhood."""


@dataclass(frozen=True, slots=True)
class ScenarioChannels:
    periods_s: tuple[float, ...]
    """The period of each channel's executions; there are as many channels as periods."""
    subscriptions: int
    """BE subscriptions per channel."""
    mean_bytes_per_s: float
    sd_bytes_per_s: float = 0.0
    """Standard deviation of the rates of BE subscriptions: normal, at least a tenth of the mean."""
    tail: float = 0.0
    """For a heavier tail: rates are also multiplied by exp(N(0, tail)), scaled to keep the mean."""
    jitter: float = 0.1
    """Relative standard deviation of the result size of one execution; normal."""
    popularity: float = 0.0
    """Exponent of Zipf's law by which subscribers choose among a channel's subscriptions. 0: all equally popular."""


@dataclass(frozen=True, slots=True)
class Bursts:
    share: float = 0.0
    """The share of BE subscriptions whose rate rises; drawn every `every_s`."""
    every_s: float = 60.0
    within_s: float = 180.0
    """A rise starts at a random time within this many seconds."""
    lasts_s: tuple[float, float] = (240.0, 360.0)
    factor: tuple[float, float] = (1.5, 2.5)


@dataclass(frozen=True, slots=True)
class Churn:
    leave_per_s: float = 0.0
    """The rate at which each subscriber logs out."""
    away_s: float = 120.0
    """Mean time until an offline subscriber logs in again, or a removed subscription is made again."""
    unsubscribe_per_s: float = 0.0
    """The rate at which each subscription is removed."""
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SurgingChannel:
    """A disaster: for a while one channel's results are many times as large as usual."""

    channel: int
    at_s: float
    factor: float = 20.0
    lasts_s: float = 120.0
    neighbourhoods: int = 0
    """How many neighbourhoods, side by side, the disaster strikes: only their own BE subscriptions surge. 0: all."""


@dataclass(frozen=True, slots=True)
class Failure:
    broker: int
    at_s: float
    back_s: float
    """When the broker is back, without subscribers."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    length_s: float
    brokers: Brokers
    subscribers: Subscribers
    channels: ScenarioChannels
    bursts: Bursts = field(default_factory=Bursts)
    churn: Churn = field(default_factory=Churn)
    failures: tuple[Failure, ...] = ()
    surges: tuple[SurgingChannel, ...] = ()
    report_s: float = 10.0
    """Period of the brokers' reports and of planning."""
    average_s: float = 60.0
    """Time constant of the moving averages of λ. The paper uses averages but does not give their length."""
    handover_s: float = 2.0
    """Time from a plan until the new broker serves the subscriber."""
    detect_s: float = 5.0
    """Time until the subscribers of a dead broker are placed anew."""
    about: str = ""


def shipped() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def _folder() -> Traversable:
    return resources.files("tocsin.sim.balance") / "scenarios"


def load(name_or_path: str) -> Scenario:
    """A shipped scenario by name, or any scenario by path. Raises BadScenario."""
    if name_or_path in shipped():
        text = (_folder() / f"{name_or_path}.toml").read_text(encoding="utf-8")
    elif Path(name_or_path).is_file():
        text = Path(name_or_path).read_text(encoding="utf-8")
    else:
        raise BadScenario(f"{name_or_path}: no such file, and no shipped scenario; shipped are {', '.join(shipped())}")
    return parse(text, name_or_path)


_PARTS: dict[str, type] = {
    "brokers": Brokers,
    "subscribers": Subscribers,
    "channels": ScenarioChannels,
    "bursts": Bursts,
    "churn": Churn,
}


def parse(text: str, where: str) -> Scenario:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadScenario(f"{where}: not TOML: {error}") from None
    parts: dict[str, Any] = dict(raw)
    for key, part in _PARTS.items():
        if key in parts:
            parts[key] = _read(part, parts[key], f"{where}: [{key}]")
    parts["failures"] = tuple(_read(Failure, entry, f"{where}: [[failures]]") for entry in raw.get("failures", ()))
    parts["surges"] = tuple(_read(SurgingChannel, entry, f"{where}: [[surges]]") for entry in raw.get("surges", ()))
    scenario = _read(Scenario, parts, where)
    _check(scenario, where)
    return scenario


def _read(kind: type[T], raw: object, where: str) -> T:
    if not isinstance(raw, Mapping):
        raise BadScenario(f"{where}: should be a table")
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    for key in raw:
        if key not in known:
            raise BadScenario(f"{where}: unknown key {key!r}; known are {', '.join(known)}")
    for name, entry in known.items():
        if name not in raw and entry.default is MISSING and entry.default_factory is MISSING:
            raise BadScenario(f"{where}: {name} is missing")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    for key, value in values.items():
        expected = str(known[key].type)
        if expected in ("int", "float") and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise BadScenario(f"{where}: {key} should be a number, not {value!r}")
        if expected == "tuple[int, int]" and not (
            isinstance(value, tuple) and len(value) == 2 and value[0] <= value[1]
        ):
            raise BadScenario(f"{where}: {key} should be [from, to], not {value!r}")
    return kind(**values)


def _check(scenario: Scenario, where: str) -> None:
    brokers, people, channels = scenario.brokers, scenario.subscribers, scenario.channels
    valid_surges = all(0 <= entry.channel < len(channels.periods_s) for entry in scenario.surges)
    valid_failures = all(0 <= entry.broker < brokers.count and entry.back_s > entry.at_s for entry in scenario.failures)
    rules = (
        (brokers.count >= 1, "[brokers] count must be at least 1"),
        (people.count >= 0, "[subscribers] count must be at least 0"),
        (all(share > 0 for share in brokers.crowd), "[brokers] crowd must be shares above 0"),
        (all(size > 0 for size in brokers.capacity), "[brokers] capacity must be above 0"),
        (bool(channels.periods_s) and all(p > 0 for p in channels.periods_s), "[channels] periods_s must be above 0"),
        (channels.subscriptions >= 1, "[channels] subscriptions must be at least 1"),
        (
            people.subscribe_until_s >= people.subscribe_from_s,
            "[subscribers] subscribe_until_s must be after subscribe_from_s",
        ),
        (
            people.channels[1] <= len(channels.periods_s),
            "[subscribers] channels must not exceed the number of periods_s",
        ),
        (
            min(scenario.length_s, scenario.report_s, scenario.average_s) > 0,
            "length_s, report_s and average_s must be above 0",
        ),
        (0 <= people.own_share <= 1, "[subscribers] own_share must be from 0 to 1"),
        (valid_surges, "[[surges]] must name a channel by number"),
        (valid_failures, "[[failures]] must name a broker by number, and back_s must be after at_s"),
    )
    for holds, rule in rules:
        if not holds:
            raise BadScenario(f"{where}: {rule}")
