"""`model.rate.MovingAverage` for whole arrays: the rates that simulated brokers measure. A test compares the two."""

from __future__ import annotations

from typing import Any

import numpy as np

from tocsin.model.rate import MEASURED_SHARE, mean_after
from tocsin.model.snapshot import Floats


class MovingAverages:
    """One average per element; `began_s` is inf for an element that is not measured."""

    def __init__(self, shape: int | tuple[int, ...], window_s: float) -> None:
        self.window_s = window_s
        self.began_s = np.full(shape, np.inf)
        self._value_per_s = np.zeros(shape)
        self._at_s = np.zeros(shape)

    def begin(self, elements: Any, now_s: float) -> None:
        """Start to measure these elements."""
        self.began_s[elements] = now_s
        self._value_per_s[elements] = 0.0
        self._at_s[elements] = now_s

    def end(self, elements: Any) -> None:
        self.began_s[elements] = np.inf

    def add(self, elements: Any, amounts: Floats, now_s: float) -> None:
        self._value_per_s[elements] = self._now(elements, now_s) + amounts / self.window_s
        self._at_s[elements] = now_s

    def restart(self, elements: Any, rate_per_s: Floats, now_s: float) -> None:
        """Start these elements again at these rates, which include the amounts of this moment."""
        self._value_per_s[elements], self._at_s[elements] = rate_per_s * self._share(elements, now_s), now_s

    def values(self, now_s: float) -> Floats:
        return self._now(..., now_s)

    def shares(self, now_s: float) -> Floats:
        return self._share(..., now_s)

    def estimates(self, now_s: float) -> Floats:
        """The averages, corrected for their youth; NaN where too little is measured."""
        share = self.shares(now_s)
        known = share >= MEASURED_SHARE
        return np.where(known, self.values(now_s) / np.where(known, share, 1.0), np.nan)

    def usuals(self, elements: Any, period_s: float, now_s: float) -> Floats:
        """The mean rates of these elements if their amounts come once a period."""
        share = np.maximum(self._share(elements, now_s), MEASURED_SHARE)
        usual: Floats = self._value_per_s[elements] / share * mean_after(period_s, self.window_s)
        return usual

    def _now(self, elements: Any, now_s: float) -> Floats:
        value: Floats = self._value_per_s[elements] * np.exp((self._at_s[elements] - now_s) / self.window_s)
        return value

    def _share(self, elements: Any, now_s: float) -> Floats:
        share: Floats = -np.expm1(np.minimum(0.0, self.began_s[elements] - now_s) / self.window_s)
        return share
