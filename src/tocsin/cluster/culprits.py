"""Finds new subscriptions whose values make a channel's query fail, so that they do not stop the channel. Pure.

A pattern that is no regular expression, a zone that does not exist, a divisor of zero: Spark fails only when it runs
the query, and one job runs it for all subscriptions. A record can make the query fail as well, and then no subscription
is at fault. So this search suspects only subscriptions that have not taken part in an execution yet.
`cluster.failures` goes on when it finds none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

MOST = 50
"""The most culprits that are searched for one by one."""


class Culprits(NamedTuple):
    reasons: dict[int, str]
    """Subscriptions that fail alone, with the reason."""
    postponed: list[int]
    """Subscriptions that fail together with others, in groups that were not searched any further.

    They are ended without blame: brokers request them again, and those without fault are granted.
    """


def culprits(
    tried: Sequence[int],
    untried: Sequence[int],
    fails: Callable[[int, int], str | None],
    in_time: Callable[[], bool] = lambda: True,
) -> Culprits:
    """The numbers in `untried` that fail, found by bisection. Pure.

    Both sequences are sorted, and every number in `untried` is above those in `tried`. `fails` runs the query for all
    numbers from one to another and returns the reason, or None if it succeeds.

    The result is empty if the tried subscriptions fail too, or if every untried one fails alone: then the query, a
    record or the machine is at fault.
    """
    if not untried or (tried and fails(tried[0], tried[-1]) is not None):
        return Culprits({}, [])
    samples = {untried[0], untried[len(untried) // 2], untried[-1]}
    if not tried and all(fails(number, number) for number in samples):
        return Culprits({}, [])
    return bisect_failing(untried, fails, lambda reasons: len(reasons) < MOST and in_time())


def bisect_failing(
    numbers: Sequence[int], fails: Callable[[int, int], str | None], goes_on: Callable[[Mapping[int, str]], bool]
) -> Culprits:
    """The numbers that fail. Groups that fail are not searched any further once `goes_on` is false. Pure."""
    reasons: dict[int, str] = {}
    postponed: list[int] = []
    pending = [(0, len(numbers))]
    while pending:
        start, end = pending.pop()
        reason = fails(numbers[start], numbers[end - 1])
        if reason is None:
            continue
        if not goes_on(reasons):
            postponed += numbers[start:end]
        elif end - start > 1:
            middle = (start + end) // 2
            pending += [(middle, end), (start, middle)]
        elif fails(numbers[start], numbers[start]) is not None:  # it failed twice, so not by accident
            reasons[numbers[start]] = reason
    return Culprits(reasons, postponed)
