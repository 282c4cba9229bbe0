"""What can be set about a demo, and how `--speed` compresses everything that waits for time to pass. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tocsin.model.duration import format_duration, parse_duration_s
from tocsin.policies.balance.multistage import MIGRATIONS, SHUFFLES
from tocsin.policies.balance.settings import NONE, PlacementPolicy

APPLICATION: Final = Path("examples/emergency/emergency.sql")
PAPER_DAY_S: Final = 1_800.0
"""An experiment of the paper lasts 30 minutes [BAD §6.1.2]."""
BALANCING_FROM_S: Final = 540.0
"""Everybody has subscribed after eight minutes; loads have shown it a minute later."""
SHORTEST_PERIOD_S: Final = 5.0
"""Of a compressed channel. An execution takes about a second of a core, and there are eight channels."""
_EVERY: Final = re.compile(r"\bEVERY\s+([\d.]+\s+[A-Z]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DemoSettings:
    application: Path
    out: Path
    subscribers: int = 400
    brokers: int = 5
    placement: str = "nearest"
    balance: str = "ldm"
    """A migration scheme, `scheme+shuffle`, or none."""
    minutes: float = 3.0
    """Of real time."""
    speed: float = 10.0
    seed: int = 7
    map: Path | None = None
    cluster: dict[str, str] = field(default_factory=dict)
    """More flags of the data cluster."""

    @property
    def day_s(self) -> float:
        """Of the city's own time."""
        return self.minutes * 60.0 * self.speed

    @property
    def pace(self) -> float:
        """A day shorter than the paper's has its phases closer together, or nobody would have subscribed by its end."""
        return min(1.0, self.day_s / PAPER_DAY_S)

    @property
    def balancing_from_s(self) -> float:
        return BALANCING_FROM_S * self.pace

    def check(self) -> None:
        """Raises ValueError, saying what was expected."""
        self.scheme()
        if self.placement not in set(PlacementPolicy):
            raise ValueError(f"--placement {self.placement}: expected one of {', '.join(PlacementPolicy)}")

    def scheme(self) -> dict[str, str]:
        """`scheme` and `shuffle` as the coordinator names them. Raises ValueError."""
        scheme, _, shuffle = self.balance.partition("+")
        chosen = {"scheme": scheme, "shuffle": shuffle or NONE}
        if scheme not in (*MIGRATIONS, NONE) or chosen["shuffle"] not in (*SHUFFLES, NONE):
            known = ", ".join([NONE, *MIGRATIONS])
            raise ValueError(
                f"--balance {self.balance}: expected one of {known}, or one of them with +gsh, as in ldm+gsh"
            )
        return chosen

    def shortened_s(self, seconds: float, least_s: float) -> float:
        return max(least_s, seconds / self.speed)

    def coordinator_flags(self) -> dict[str, str]:
        """Reports and rests as much closer together as the day is."""
        return {
            "placement": self.placement, "report-s": f"{self.shortened_s(5.0, 1.0):g}",
            "balance-s": f"{self.shortened_s(10.0, 2.0):g}", "rest-s": f"{self.shortened_s(60.0, 6.0):g}",
            "shuffle-rest-s": f"{self.shortened_s(300.0, 30.0):g}", "log-level": "warning",
        }  # fmt: skip

    def broker_flags(self) -> dict[str, str]:
        return {"rate-window-s": f"{self.shortened_s(60.0, 6.0):g}", "log-level": "warning"}

    def as_json(self) -> dict[str, Any]:
        return {
            "subscribers": self.subscribers, "brokers": self.brokers, "placement": self.placement,
            "balance": self.balance, "minutes": self.minutes, "speed": self.speed, "seed": self.seed,
            "map": None if self.map is None else self.map.name,
        }  # fmt: skip


def application_file(named: Path | None = None) -> Path:
    """The one named, or the emergency application of the checkout this program is part of. Raises ValueError."""
    import tocsin

    wanted = APPLICATION if named is None else named
    found = next(filter(Path.is_file, (wanted, Path(tocsin.__file__).parents[2] / wanted)), None)
    if found is None:
        raise ValueError(f"there is no {wanted}; name the application file with --application")
    return found


def compressed(text: str, speed: float) -> tuple[str, dict[float, float]]:
    """An application file with every period divided by `speed`, in whole seconds and at least one; and what became of
    which period."""
    became: dict[float, float] = {}

    def shorter(found: re.Match[str]) -> str:
        period_s = parse_duration_s(found[1])
        if period_s is None:
            return found[0]
        became[period_s] = min(period_s, max(SHORTEST_PERIOD_S, math.ceil(period_s / speed)))
        return f"EVERY {format_duration(became[period_s])}"

    lines = [line if line.lstrip().startswith("--") else _EVERY.sub(shorter, line) for line in text.splitlines()]
    return "\n".join(lines) + "\n", became
