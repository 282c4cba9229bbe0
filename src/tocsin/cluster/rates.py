"""The data rate λ of every backend subscription: bytes of results per second, a moving average [BAD §4, §6.1.2].

An exponential average with time constant `window_s`: each execution adds its bytes spread over the window, and what was
added fades. Arrays by subscription number, so a million subscriptions cost 24 MB and an update is a few vector steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Amounts = npt.NDArray[np.float64]


class Rates:
    def __init__(self, window_s: float = 60.0) -> None:
        self.window_s = window_s
        self._numbers: Numbers = np.empty(0, np.int64)
        self._rates: Amounts = np.empty(0)
        self._at_s: Amounts = np.empty(0)

    def add(self, numbers: Numbers, size_bytes: npt.NDArray[np.int64], now_s: float) -> None:
        """An execution gave these subscriptions so many bytes. `numbers` are distinct."""
        self._admit(numbers)
        places = np.searchsorted(self._numbers, numbers)
        self._rates[places] = self._faded(places, now_s) + size_bytes / self.window_s
        self._at_s[places] = now_s

    def of(self, numbers: Numbers, now_s: float) -> Amounts:
        """λ of each, in bytes per second; 0 for those that never had a result."""
        rates = np.zeros(len(numbers))
        if len(self._numbers):
            places = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
            known = self._numbers[places] == numbers
            rates[known] = self._faded(places[known], now_s)
        return rates

    def forget(self, numbers: Numbers) -> None:
        keep = ~np.isin(self._numbers, numbers)
        self._numbers, self._rates, self._at_s = self._numbers[keep], self._rates[keep], self._at_s[keep]

    def _faded(self, places: npt.NDArray[np.intp], now_s: float) -> Amounts:
        # A clock that steps back must not make rates grow.
        age_s = np.maximum(0.0, now_s - self._at_s[places])
        faded: Amounts = self._rates[places] * np.exp(-age_s / self.window_s)
        return faded

    def _admit(self, numbers: Numbers) -> None:
        new = np.setdiff1d(numbers, self._numbers, assume_unique=True)
        if len(new):
            order = np.argsort(merged := np.concatenate([self._numbers, new]), kind="stable")
            self._numbers = merged[order]
            self._rates = np.concatenate([self._rates, np.zeros(len(new))])[order]
            self._at_s = np.concatenate([self._at_s, np.zeros(len(new))])[order]
