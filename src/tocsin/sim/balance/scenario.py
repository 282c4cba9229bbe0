"""Scenario files of the broker network: who is where, who wants what, what comes of it, and what goes wrong.

A scenario is a TOML file; those shipped are in `sim/balance/scenarios/` and are called by name. This module reads and
checks: it draws nothing (`world` does, from a seed) and runs nothing. A key it does not know is refused by name, with
those it knows: a misspelt key would otherwise be a default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class BadScenario(ValueError):
    """The file, and what to change in it."""


@dataclass(frozen=True, slots=True)
class Brokers:
    count: int
    crowd: tuple[float, ...] = ()
    """How subscribers are spread over the brokers' surroundings, as shares; shorter lists are repeated. Empty: evenly.
    The nearest broker therefore gets about its share: geographic skew."""
    capacity: tuple[float, ...] = ()
    """Relative; shorter lists are repeated. Empty: equal."""
    scatter: float = 0.15
    """How far from its broker's place somebody is, relative to the distance between neighbouring brokers (standard
    deviation)."""


@dataclass(frozen=True, slots=True)
class Subscribers:
    count: int
    channels: tuple[int, int] = (0, 0)
    """How many channels one subscribes to, from–to; 0: any."""
    subscriptions: tuple[int, int] = (1, 1)
    """How many subscriptions, from–to: per channel if `channels` is given, otherwise in all."""
    join_within_s: float = 1.0
    subscribe_from_s: float = 1.0
    subscribe_until_s: float = 60.0
    neighbourhoods: int = 0
    """Groups that live together and share most interests. 0: everybody chooses for themselves."""
    own_share: float = 0.8
    """Of a subscriber's interests, those from its neighbourhood's own."""


@dataclass(frozen=True, slots=True)
class Channels:
    periods_s: tuple[float, ...]
    """One channel each; its executions are this far apart."""
    subscriptions: int
    """BE subscriptions per channel."""
    mean_bytes_per_s: float
    sd_bytes_per_s: float = 0.0
    """Of the rates of BE subscriptions: normal, cut off at a tenth of the mean."""
    tail: float = 0.0
    """Heavier than normal: rates are also multiplied by exp(N(0, tail)), scaled to keep the mean."""
    jitter: float = 0.1
    """Of one execution's results around the rate: normal, relative standard deviation."""
    popularity: float = 0.0
    """Exponent of Zipf's law by which subscribers choose among a channel's subscriptions. 0: all alike."""


@dataclass(frozen=True, slots=True)
class Bursts:
    share: float = 0.0
    """Of the BE subscriptions, chosen every `every_s` to rise."""
    every_s: float = 60.0
    within_s: float = 180.0
    """They rise at some time within this."""
    lasts_s: tuple[float, float] = (240.0, 360.0)
    factor: tuple[float, float] = (1.5, 2.5)


@dataclass(frozen=True, slots=True)
class Churn:
    leave_per_s: float = 0.0
    """Of each subscriber: the rate at which it goes offline."""
    away_s: float = 120.0
    """Mean time until it is back and is placed anew."""
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    broker: int
    at_s: float
    back_s: float
    """When it is back, empty."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    length_s: float
    brokers: Brokers
    subscribers: Subscribers
    channels: Channels
    bursts: Bursts = field(default_factory=Bursts)
    churn: Churn = field(default_factory=Churn)
    failures: tuple[Failure, ...] = ()
    report_s: float = 10.0
    """Brokers report and the coordinator plans."""
    average_s: float = 60.0
    """Time constant of the moving averages of λ. The paper says that it averages, not over what."""
    handover_s: float = 2.0
    """From a plan to the subscriber being served by its new broker."""
    detect_s: float = 5.0
    """Until a dead broker's subscribers are placed anew."""
    about: str = ""


def shipped() -> list[str]:
    folder = resources.files("tocsin.sim.balance") / "scenarios"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name_or_path: str) -> Scenario:
    """A shipped scenario by name, or any by path."""
    if name_or_path in shipped():
        text = (resources.files("tocsin.sim.balance") / "scenarios" / f"{name_or_path}.toml").read_text(
            encoding="utf-8"
        )
    elif Path(name_or_path).is_file():
        text = Path(name_or_path).read_text(encoding="utf-8")
    else:
        raise BadScenario(f"{name_or_path}: no such file, and no shipped scenario; there are {', '.join(shipped())}")
    return parse(text, name_or_path)


def parse(text: str, where: str) -> Scenario:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadScenario(f"{where}: not TOML: {error}") from None
    parts: dict[str, Any] = dict(raw)
    for key, part in (("brokers", Brokers), ("subscribers", Subscribers), ("channels", Channels), ("bursts", Bursts),
                      ("churn", Churn)):  # fmt: skip
        if key in parts:
            parts[key] = _read(part, parts[key], f"{where}: [{key}]")
    parts["failures"] = tuple(_read(Failure, one, f"{where}: [[failures]]") for one in raw.get("failures", ()))
    scenario = _read(Scenario, parts, where)
    _check(scenario, where)
    return scenario


def _read(kind: type[T], raw: object, where: str) -> T:
    if not isinstance(raw, Mapping):
        raise BadScenario(f"{where}: should be a table")
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
    for key in raw:
        if key not in known:
            raise BadScenario(f"{where}: does not know {key!r}; it knows {', '.join(known)}")
    for name, one in known.items():
        if name not in raw and one.default is MISSING and one.default_factory is MISSING:
            raise BadScenario(f"{where}: {name} is missing")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    for key, value in values.items():
        wanted = str(known[key].type)
        if wanted in ("int", "float") and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise BadScenario(f"{where}: {key} should be a number, not {value!r}")
        if wanted == "tuple[int, int]" and not (isinstance(value, tuple) and len(value) == 2 and value[0] <= value[1]):
            raise BadScenario(f"{where}: {key} should be [from, to], not {value!r}")
    return kind(**values)


def _check(scenario: Scenario, where: str) -> None:
    brokers, people, channels = scenario.brokers, scenario.subscribers, scenario.channels
    rules = (
        (brokers.count >= 1, "[brokers] count is at least 1"),
        (people.count >= 0, "[subscribers] count is at least 0"),
        (all(share > 0 for share in brokers.crowd), "[brokers] crowd are shares above 0"),
        (all(size > 0 for size in brokers.capacity), "[brokers] capacity is above 0"),
        (bool(channels.periods_s) and all(p > 0 for p in channels.periods_s), "[channels] periods_s are above 0"),
        (channels.subscriptions >= 1, "[channels] subscriptions is at least 1"),
        (people.subscribe_until_s >= people.subscribe_from_s, "[subscribers] subscribe_until_s is after …from_s"),
        (people.channels[1] <= len(channels.periods_s), "[subscribers] channels: there are not as many"),
        (min(scenario.length_s, scenario.report_s, scenario.average_s) > 0, "length_s, report_s, average_s: above 0"),
        (0 <= people.own_share <= 1, "[subscribers] own_share is from 0 to 1"),
        (all(0 <= one.broker < brokers.count and one.back_s > one.at_s for one in scenario.failures),
         "[[failures]] name a broker by number, and it is back after it failed"),
    )  # fmt: skip
    for holds, rule in rules:
        if not holds:
            raise BadScenario(f"{where}: {rule}")
