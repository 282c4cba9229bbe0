"""Settings of a demo, and how `--speed` compresses periods and time-outs. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tocsin.model.duration import format_duration, parse_duration_s
from tocsin.policies.balance.multistage import MIGRATIONS, SHUFFLES
from tocsin.policies.balance.settings import NONE, PlacementPolicy
from tocsin.sim.city.subscriptions import CHANNELS

APPLICATION: Final = Path("examples/emergency/emergency.sql")
PAPER_DAY_S: Final = 1_800.0
"""An experiment of the paper lasts 30 minutes [BAD §6.1.2]."""
BALANCING_FROM_S: Final = 540.0
"""All people have subscribed after eight minutes; a minute later the loads reflect it."""
SHORTEST_PERIOD_S: Final = 2.0
"""Shortest period of a compressed channel by default: one round of all eight channels takes about a second of a
core."""
_EVERY: Final = re.compile(r"\bEVERY\s+([\d.]+\s+[A-Z]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DemoSettings:
    application: Path
    out: Path
    subscribers: int = 400
    brokers: int = 5
    placement: str = "nearest"
    balance: str = "ldm"
    """A migration scheme, `scheme+shuffle`, or `none`."""
    minutes: float = 3.0
    """Minutes of real time."""
    speed: float = 10.0
    seed: int = 7
    map: Path | None = None
    cluster: dict[str, str] = field(default_factory=dict)
    """Additional flags of the data cluster."""
    channels: tuple[str, ...] = tuple(CHANNELS)
    """The channels of the application that are created, and that people subscribe to."""
    warm_ups: int = 2
    """Executions with results per channel before the day: the first compiles the channel's plan, the second uses the
    compiled plan."""
    shortest_period_s: float = SHORTEST_PERIOD_S
    changing_share: float = 1.0
    """Share of the run in which people log in, subscribe, log out and unsubscribe. The load is constant afterwards."""
    recompute: bool = True
    """Whether the demo computes the expected notifications from the reports, and adds the last batch for it."""

    @property
    def day_s(self) -> float:
        """Length of the day in seconds of the city's time."""
        return self.minutes * 60.0 * self.speed

    @property
    def pace(self) -> float:
        """Factor at most 1 by which the phases of a day shorter than the paper's move closer together."""
        return min(1.0, self.changing_share * self.day_s / PAPER_DAY_S)

    @property
    def balancing_from_s(self) -> float:
        return BALANCING_FROM_S * self.pace

    def check(self) -> None:
        """Raise ValueError on an unknown placement or scheme."""
        self.scheme()
        if self.placement not in set(PlacementPolicy):
            raise ValueError(f"--placement {self.placement}: expected one of {', '.join(PlacementPolicy)}")

    def scheme(self) -> dict[str, str]:
        """Return `scheme` and `shuffle` as the coordinator names them, or raise ValueError."""
        scheme, _, shuffle = self.balance.partition("+")
        chosen = {"scheme": scheme, "shuffle": shuffle or NONE}
        if scheme not in (*MIGRATIONS, NONE) or chosen["shuffle"] not in (*SHUFFLES, NONE):
            names = ", ".join([NONE, *MIGRATIONS])
            raise ValueError(
                f"--balance {self.balance}: expected one of {names}, or one of them with +gsh, as in ldm+gsh"
            )
        return chosen

    def shortened_s(self, seconds: float, least_s: float) -> float:
        return max(least_s, seconds / self.speed)

    def coordinator_flags(self) -> dict[str, str]:
        """Flags that shorten reporting periods and rests by the speed."""
        return {
            "placement": self.placement,
            "report-s": f"{self.shortened_s(5.0, 1.0):g}",
            "balance-s": f"{self.shortened_s(10.0, 2.0):g}",
            "rest-s": f"{self.shortened_s(60.0, 6.0):g}",
            "shuffle-rest-s": f"{self.shortened_s(300.0, 30.0):g}",
            "log-level": "warning",
        }

    @property
    def rate_window_s(self) -> float:
        """The averaging window of loads and of λ."""
        return self.shortened_s(60.0, 6.0)

    def broker_flags(self) -> dict[str, str]:
        return {"rate-window-s": f"{self.rate_window_s:g}", "log-level": "warning"}

    def application_text(self) -> tuple[str, dict[float, float]]:
        """Return the application with its channels and periods for this run, and the new period of each old one."""
        text = self.application.read_text(encoding="utf-8")
        for channel in CHANNELS.keys() - set(self.channels):
            text = re.sub(rf"^CREATE \w+ CHANNEL {channel}\b[^;]*;", "", text, flags=re.MULTILINE)
        return compressed(text, self.speed, self.shortest_period_s)

    def as_json(self) -> dict[str, Any]:
        return {
            "subscribers": self.subscribers,
            "brokers": self.brokers,
            "placement": self.placement,
            "balance": self.balance,
            "minutes": self.minutes,
            "speed": self.speed,
            "seed": self.seed,
            "map": None if self.map is None else self.map.name,
        }


def application_file(named: Path | None = None) -> Path:
    """Return the named file, or the emergency application of this checkout. Raise ValueError if it does not exist."""
    import tocsin

    path = APPLICATION if named is None else named
    existing = next(filter(Path.is_file, (path, Path(tocsin.__file__).parents[2] / path)), None)
    if existing is None:
        raise ValueError(f"there is no {path}; name the application file with --application")
    return existing


def compressed(text: str, speed: float, shortest_s: float = SHORTEST_PERIOD_S) -> tuple[str, dict[float, float]]:
    """Divide every period of an application file by `speed`, in whole seconds and down to `shortest_s`. Return the text
    and the new period of each old one."""
    became: dict[float, float] = {}

    def shorter(match: re.Match[str]) -> str:
        period_s = parse_duration_s(match[1])
        if period_s is None:
            return match[0]
        became[period_s] = min(period_s, max(shortest_s, math.ceil(period_s / speed)))
        return f"EVERY {format_duration(became[period_s])}"

    lines = [line if line.lstrip().startswith("--") else _EVERY.sub(shorter, line) for line in text.splitlines()]
    return "\n".join(lines) + "\n", became
