"""The discrete-event kernel: virtual time and a total order of events, shared by every simulation.

It is a clock, an event queue and named streams of random numbers. It does not depend on brokers, links or topics: a
simulation schedules callbacks (`call_at`, `call_after`) or generator processes (`spawn`), and executes them with `run`.
It is not an asyncio loop and never waits: an hour of virtual time takes as long as its events take to compute.

Events happen in the total order (time, priority, sequence). Two events with equal time and priority happen in the order
in which they were scheduled, so a run depends on its seed alone.

A process is a generator. The value that it yields determines when it resumes:

    yield 0.040        after 40 ms of virtual time
    yield signal       when the signal fires; the yield returns the value it fired with
    yield None         in the same instant, after all events already scheduled for it
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")
Process = Generator["float | Signal[Any] | None", Any, Any]

EARLY, NORMAL, LATE = -1, 0, 1
"""Priorities within one instant. Most events are NORMAL; EARLY ones see the state before them, LATE ones after them."""

_REMEMBERED_EVENTS = 8


def seed_from(*parts: int | float | str) -> int:
    """A seed of 63 bits that depends on `parts` alone: equal on every machine and in every process, unlike `hash`."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class Timer:
    """A scheduled callback. After `cancel` it does not happen any more."""

    __slots__ = ("action", "arguments", "cancelled", "time_s")

    def __init__(self, time_s: float, action: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self.time_s = time_s
        self.action = action
        self.arguments = arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Signal(Generic[T]):
    """Fires once, with a value. A process that waits for a signal that has fired resumes at once."""

    __slots__ = ("_kernel", "_value", "_waiting", "fired")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._waiting: list[Callable[[T], object]] = []
        self._value: T | None = None
        self.fired = False

    def fire(self, value: T) -> None:
        if self.fired:
            raise RuntimeError(f"a signal fires once; it already fired with {self._value!r}")
        self.fired, self._value = True, value
        for action in self._waiting:
            self._kernel.call_after(0.0, action, value)
        self._waiting.clear()

    def then(self, action: Callable[[T], object]) -> None:
        """Call `action` with the value when the signal fires, or now if it has fired."""
        if self.fired:
            self._kernel.call_after(0.0, action, self._value)
        else:
            self._waiting.append(action)


class Kernel:
    """Virtual time starts at 0 s. A kernel is for one run: it is not restarted and not shared between threads."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_s = 0.0
        self.events_happened = 0
        self._sequence = 0
        self._queue: list[tuple[float, int, int, Timer]] = []
        self._streams: dict[str, np.random.Generator] = {}
        self._history: deque[tuple[float, Callable[..., object]]] = deque(maxlen=_REMEMBERED_EVENTS)

    def stream(self, name: str) -> np.random.Generator:
        """The seeded random stream of one purpose.

        Each name has its own stream, so drawing more for one purpose (say, mobility) does not change the others.
        """
        if name not in self._streams:
            self._streams[name] = np.random.default_rng(seed_from(self.seed, name))
        return self._streams[name]

    def signal(self) -> Signal[Any]:
        return Signal(self)

    def all_of(self, signals: Iterable[Signal[Any]]) -> Signal[list[Any]]:
        """A signal that fires when all `signals` have fired, with their values in the same order."""
        pending = list(signals)
        values: list[Any] = [None] * len(pending)
        together: Signal[list[Any]] = Signal(self)
        missing = len(pending)

        def arrived(number: int, value: object) -> None:
            nonlocal missing
            values[number] = value
            missing -= 1
            if not missing:
                together.fire(values)

        for number, signal in enumerate(pending):
            signal.then(partial(arrived, number))
        if not pending:
            together.fire(values)
        return together

    def call_at(self, time_s: float, action: Callable[..., object], *arguments: Any, priority: int = NORMAL) -> Timer:
        if not time_s >= self.now_s or math.isinf(time_s):  # `not >=` also rejects NaN
            raise ValueError(f"cannot schedule at {time_s} s: the virtual time is {self.now_s} s")
        timer = Timer(time_s, action, arguments)
        heapq.heappush(self._queue, (time_s, priority, self._sequence, timer))
        self._sequence += 1
        return timer

    def call_after(
        self, delay_s: float, action: Callable[..., object], *arguments: Any, priority: int = NORMAL
    ) -> Timer:
        return self.call_at(self.now_s + delay_s, action, *arguments, priority=priority)

    def every(
        self,
        period_s: float,
        action: Callable[..., object],
        *arguments: Any,
        first_s: float | None = None,
        priority: int = NORMAL,
    ) -> Timer:
        """Call `action` at `first_s` (default: one period from now) and then every period, until the timer is
        cancelled.

        The k-th call is at first + k·period, not at a running sum, so that rounding does not accumulate.
        """
        if not period_s > 0:
            raise ValueError(f"the period must be above 0, not {period_s} s")
        start_s = self.now_s + period_s if first_s is None else first_s
        timer = Timer(start_s, action, arguments)

        def repeat(count: int) -> None:
            if not timer.cancelled:
                action(*arguments)
                timer.time_s = start_s + (count + 1) * period_s
                self.call_at(timer.time_s, repeat, count + 1, priority=priority)

        self.call_at(start_s, repeat, 0, priority=priority)
        return timer

    def spawn(self, process: Process, *, priority: int = NORMAL) -> Signal[Any]:
        """Run a generator as a process, starting now. The signal fires with the generator's return value."""
        done: Signal[Any] = Signal(self)

        def resume(value: object = None) -> None:
            try:
                condition = process.send(value)
            except StopIteration as stop:
                done.fire(stop.value)
                return
            if isinstance(condition, Signal):
                condition.then(resume)
            else:
                self.call_after(0.0 if condition is None else condition, resume, priority=priority)

        self.call_after(0.0, resume, priority=priority)
        return done

    @property
    def next_time_s(self) -> float | None:
        """The time of the next event; None if the queue is empty."""
        while self._queue and self._queue[0][3].cancelled:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def step(self) -> bool:
        """Execute the next event. Returns False if there is none."""
        if self.next_time_s is None:
            return False
        time_s, _, _, timer = heapq.heappop(self._queue)
        self._execute(time_s, timer)
        return True

    def _execute(self, time_s: float, timer: Timer) -> None:
        self.now_s = time_s
        self.events_happened += 1
        self._history.append((time_s, timer.action))
        try:
            timer.action(*timer.arguments)
        except Exception as error:
            latest = [f"{at_s:.6f} s {getattr(action, '__qualname__', action)}" for at_s, action in self._history]
            error.add_note("latest events, the last one failed:\n  " + "\n  ".join(latest))
            raise

    def run(self, until_s: float | None = None) -> float:
        """Execute events up to and including `until_s`, or until the queue is empty; returns the time reached."""
        limit_s = math.inf if until_s is None else until_s
        queue = self._queue
        while queue and queue[0][0] <= limit_s:
            time_s, _, _, timer = heapq.heappop(queue)
            if not timer.cancelled:
                self._execute(time_s, timer)
        if until_s is not None and until_s > self.now_s:
            self.now_s = until_s
        return self.now_s
