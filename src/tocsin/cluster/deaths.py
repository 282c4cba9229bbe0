"""Values that kill Spark: the search goes on over restarts, because Spark cannot report what has killed it.

A death of Spark during an execution is evidence against its channel, until an execution succeeds. A JVM that ends by
itself, for example because a task has no memory left, is strong evidence. A JVM that was killed, or that died with the
data cluster, is weak evidence: a person, a supervisor or the operating system may have done it. With enough evidence,
values are on trial before the next execution: first the subscriptions that have not taken part in one yet, then the NEW
records, in groups. Each group is stored before its trial. If Spark dies with it, the next start tries the parts of that
group, down to a single value.

A single value is blamed only with enough evidence from its own trials, which a survived trial takes away, and only if
Spark survives all other values in the same process. Pure: the catalog and Spark are behind functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tocsin.cluster.catalog.trials import OnTrial

GROUPS = 32
"""The most groups of one round: a thousand values need two deaths, a million four."""
REASON = "Spark died each time with this value"
BY_ITSELF = 3
FROM_OUTSIDE = 1
"""The evidence of one death."""
SUSPICIOUS = 3
"""The evidence against a channel with which the search begins. Before that, executions just run again: the search
delays them, so that the next kill from outside would come before a success."""
GUILTY = 6
"""The evidence from its own trials with which a single value is blamed."""


def find_killer(
    kind: str, values: Sequence[int], suspected: OnTrial | None, evidence: int, try_group: Callable[[OnTrial], None]
) -> int | None:
    """The value that kills Spark, or None if Spark survives all groups.

    `values` are in order. `suspected` is the last group that Spark did not survive, and `evidence` that against its
    single value. `try_group` does not return if Spark dies.
    """
    if suspected is not None and suspected.kind == kind:
        before = [value for value in values if value < suspected.first]
        after = [value for value in values if value > suspected.last]
        values = [value for value in values if suspected.first <= value <= suspected.last]
        if len(values) == 1 and evidence >= GUILTY:
            for others in filter(None, (before, after)):
                try_group(OnTrial(kind, others[0], others[-1]))
            return values[0]
    size = max(1, -(-len(values) // GROUPS))
    for start in range(0, len(values), size):
        group = values[start : start + size]
        try_group(OnTrial(kind, group[0], group[-1]))
    return None
