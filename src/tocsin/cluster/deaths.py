"""Values that kill Spark: the search goes on over restarts, because Spark cannot report what has killed it.

An execution during which Spark died is counted in the catalog. Before the next one, the subscriptions that have not
taken part in an execution yet are tried in groups, and after a second death the NEW records too. Each group is stored
before its trial. If Spark dies with it, the next start tries the parts of that group, down to a single value.

Spark may also die for other reasons during a trial: a person kills it, or the machine has no memory left. So a single
value is blamed only with enough evidence, which deaths during its own trials give and a survived trial takes away, and
only if Spark survives all other values in the same process. Pure: the catalog and Spark are behind functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tocsin.cluster.catalog.trials import OnTrial

GROUPS = 32
"""The most groups of one round: a thousand values need two deaths, a million four."""
REASON = "Spark died each time with this value"
GUILTY = 4
"""The evidence with which a single value is blamed: the data cluster saw Spark die in two of its trials, or died with
Spark in four. Two kills from outside must not end a subscription."""


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
