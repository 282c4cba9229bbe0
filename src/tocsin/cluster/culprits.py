"""Whose fault it is that an execution fails: a newcomer's values must not stop a channel for everybody.

A pattern that is no regular expression, a zone that does not exist, a divisor of zero: Spark finds out when it runs the
query, and one job runs it for all. A record can make it fail as well, and then nobody is to blame: so only those are
suspected who have not been through an execution yet. Pure; `cluster.spark.execution` tries the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

MOST = 50
"""Found at a time; who is left will be found the next time."""


def culprits(tried: Sequence[int], untried: Sequence[int], fails: Callable[[int, int], str | None]) -> dict[int, str]:
    """Those of `untried` that fail, with the reason. Both are sorted, and all of `untried` come after `tried`; `fails`
    tries all from one number to another.

    Nothing if those fail too who did not before, or if all do alone: then it is the query, a record or the machine.
    """
    if not untried or (tried and fails(tried[0], tried[-1]) is not None):
        return {}
    if not tried and all(fails(one, one) for one in {untried[0], untried[len(untried) // 2], untried[-1]}):
        return {}
    found: dict[int, str] = {}
    waiting = [(0, len(untried))]
    while waiting and len(found) < MOST:
        start, end = waiting.pop()
        reason = fails(untried[start], untried[end - 1])
        if reason is None:
            continue
        if end - start > 1:
            middle = (start + end) // 2
            waiting += [(middle, end), (start, middle)]
        elif fails(untried[start], untried[start]) is not None:  # and not by accident
            found[untried[start]] = reason
    return found
