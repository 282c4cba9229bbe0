"""The figures of a finished day of the city: quantiles and stages of its continuous and of its repetitive channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from tocsin.benchmarks.shared.pull_probe import Pull
from tocsin.benchmarks.shared.stages import Executions, merged, pull_share, stages
from tocsin.demo import report
from tocsin.demo.deliveries import Deliveries, Seconds, quantiles_s
from tocsin.demo.run import DemoOutcome
from tocsin.sim.city.subscriptions import BEYOND_THE_PAPER

PROBED: Final = {"continuous": BEYOND_THE_PAPER, "repetitive": "EmergenciesOfType"}
"""The channel whose pulls the probe measures, for each kind of channel."""
Window = tuple[float, float]
"""From and to, by the wall clock."""


class CityDeliveries:
    def __init__(
        self,
        outcome: DemoOutcome,
        executions: Mapping[str, Executions],
        stored_s: Seconds,
        pulls: Mapping[str, Sequence[Pull]],
    ) -> None:
        """`stored_s` has the time at which each report was in its dataset, by number; `pulls` are the probe's."""
        self._pulls = pulls
        self._executions = executions
        self._stored_s = stored_s
        by_channel = outcome.account.by_channel()
        names = [channel["name"] for channel in outcome.channels]
        self._deliveries = {name: Deliveries.of(outcome.account, by_channel.get(name, [])) for name in names}
        self.periods_s: dict[str, float] = {
            channel["name"]: channel["period_s"] for channel in outcome.channels if channel["period_s"] is not None
        }
        self._kinds = {
            "continuous": [name for name in names if name not in self.periods_s],
            "repetitive": list(self.periods_s),
        }

    def quantiles(self, window: Window) -> dict[str, Any]:
        """p50 and p95 of both kinds. `over` is by how much they exceed half a period and a period of their channels."""
        found: dict[str, Any] = {}
        for kind, names in self._kinds.items():
            own_s = [self._deliveries[name].between(*window).latencies_s for name in names]
            p50_s, p95_s = quantiles_s(own_s)
            found |= {f"{kind}_p50_s": p50_s, f"{kind}_p95_s": p95_s, f"{kind}_deliveries": sum(map(len, own_s))}
            if kind == "repetitive":
                pairs = list(zip(own_s, map(self.periods_s.__getitem__, names), strict=True))
                found["repetitive_over_p50_s"] = quantiles_s([latency - period / 2 for latency, period in pairs])[0]
                found["repetitive_over_p95_s"] = quantiles_s([latency - period for latency, period in pairs])[1]
        return found

    def breakdown(self, window: Window) -> dict[str, Any]:
        """The mean stages of both kinds of channels."""
        found: dict[str, Any] = {}
        for kind, names in self._kinds.items():
            share = self._pull_share(PROBED[kind], window)
            parts = [
                stages(self._deliveries[name].between(*window), self._executions[name], self._stored_s, share)
                for name in names
            ]
            total = merged([part for part in parts if part is not None])
            found[kind] = None if total is None else asdict(total)
        return found

    def _pull_share(self, channel: str, window: Window) -> float:
        pulls = self._pulls.get(channel)
        if pulls is None or channel not in self._deliveries:
            return 0.0
        pulled_s = {pull.execution: pull.pulled_s for pull in pulls}
        return pull_share(self._deliveries[channel].between(*window), self._executions[channel], pulled_s)


def problems_of(outcome: DemoOutcome) -> list[str]:
    """Why the notifications of a day are wrong, as sentences; an empty list if all are right."""
    return report.problems(report.numbers(outcome))


def lost_of(outcome: DemoOutcome) -> int:
    """Lost notifications, by the stored results and by the computation from the reports alone."""
    computed = [outcome.recomputed, *(outcome.batch or {}).values()]
    return outcome.audit.lost + sum(again.lost for again in computed if again is not None)
