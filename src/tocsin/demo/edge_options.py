"""The options of `tocsin experiment ami-live`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tocsin.demo.edge_world import MeterLoad
from tocsin.experiments.ami_live import SCENARIOS


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """The options of `--set`."""

    scenarios: str = ",".join(SCENARIOS)
    nodes: int = 7
    meters: int = 4_000
    rate_per_s: float = 1.0
    """Readings per second and meter."""
    user_s: int = 20
    """The window of users."""
    period_s: float = 5.0
    """Monitoring period T of the nodes [AMI §3.3]."""
    calm_s: float = 60.0
    """Before the faults: bytes on the data connections count in this time."""
    before_s: float = 20.0
    """Before the burst."""
    burst_s: float = 45.0
    calibrate_s: float = 25.0
    """Between the two, at a higher rate: the load at two rates shows which part of it grows with the rate."""
    burst_pct: float = 115.0
    """The burst: the load that the leaf would have without a limit, in percent of its budget. The factor of the rates
    follows from the calibration, so that the burst is the same on a faster machine."""
    peaks: int = 32
    """Further queries per user in the burst. Operators that leave a node take their work along, and the readings that
    they need are sent after them, to each node on the way. With few queries the readings cost more than the work, and
    no division among leaf, district and city keeps all three below U_t."""
    cpu_share: float = 0.12
    """Budget of each node in the burst, as a share of one core."""
    transfers: int = 20
    items: int = 280_000
    """Keys of the large operator that ordered transfers move."""
    kills: int = 5
    down_s: float = 8.0
    """From a death to the restart of the node, and the length of the silence of a stopped node."""
    settle_s: float = 5.0
    """After each fault."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> EdgeOptions:
        """Raises ValueError for an unknown option or a wrong value."""
        names = [field.name for field in fields(cls)]
        known: dict[str, Callable[[str], Any]] = {name: type(getattr(cls(), name)) for name in names}
        if unknown := sorted(options.keys() - known.keys()):
            raise ValueError(f"ami-live has the options {', '.join(known)}, not {', '.join(unknown)}")
        read = cls(**{name: known[name](value) for name, value in options.items()})
        if not set(read.chosen) <= set(SCENARIOS):
            raise ValueError(f"scenarios are some of {', '.join(SCENARIOS)}, separated by commas")
        return read

    @property
    def chosen(self) -> list[str]:
        return self.scenarios.split(",")

    @property
    def load(self) -> MeterLoad:
        return MeterLoad(self.meters, self.rate_per_s, turn_s=0.5)

    @property
    def burst_load(self) -> MeterLoad:
        return MeterLoad(self.meters, self.rate_per_s, turn_s=1.0)
