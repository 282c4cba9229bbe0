"""What the tests with random delays and faults share: a seeded choice of the next action, a log, and usual delays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tocsin.sim.kernel import Kernel
from tocsin.sim.network.coordinator import RECONNECT_S

Action = tuple[int, str, Callable[[], object]]
"""(weight, name, what to do)."""


class RandomSteps:
    """Draws delays and actions. `network` is a simulated network with a kernel, a transport and a coordinator."""

    def __init__(self, kernel: Kernel, network: Any, reconnect_s: float, delays_s: tuple[float, float]) -> None:
        self.rng = kernel.stream("faults")
        self.log: list[str] = []
        self._delays = kernel.stream("delays")
        self._network = network
        self._reconnect_s = reconnect_s
        self._delays_s = delays_s

    def draw_delay_s(self, usual_s: float) -> float:
        """A random delay, long enough for any message of another pipe to overtake.

        Broken links stay down for longer, so that brokers work without the coordinator for a while.
        """
        mean_s = self._reconnect_s if usual_s >= RECONNECT_S else float(self._delays.choice(self._delays_s))
        return float(self._delays.exponential(mean_s))

    def run(self, seconds: float) -> None:
        self._network.kernel.run(self._network.kernel.now_s + seconds)

    def crash_on_message(self, moment: str) -> Callable[[], None]:
        return lambda: setattr(self._network.coordinator, "crash_on_message", moment)

    def coordinator_faults(self) -> list[Action]:
        return [
            (1, "restart coordinator", self._network.coordinator.restart),
            (1, "crash coordinator before storing", self.crash_on_message("before storing")),
            (1, "crash coordinator before sending", self.crash_on_message("before sending")),
        ]

    def take(self, actions: Sequence[Action], about: str) -> None:
        """Do one of the actions, by weight."""
        weights = np.array([weight for weight, _, _ in actions], float)
        _, name, action = actions[int(self.rng.choice(len(actions), p=weights / weights.sum()))]
        self.log.append(f"{self._network.kernel.now_s:.2f} s {name} {about}")
        action()

    def settle(self) -> None:
        """No more faults: every message arrives after its usual delay."""
        self._network.transport.delay_s = lambda usual_s: usual_s
        self._network.coordinator.crash_on_message = None
