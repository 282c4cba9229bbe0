"""How long to wait before a retry. Pure: the caller counts its failures and draws the jitter."""

from __future__ import annotations

SHORTEST_S = 1.0
LONGEST_S = 60.0
_MOST_DOUBLINGS = 16
"""The most doublings of a delay. They keep the power of two finite; every bound is reached with fewer."""


def retry_delay_s(
    failures: int, *, shortest_s: float = SHORTEST_S, longest_s: float = LONGEST_S, jitter: float = 1.0
) -> float:
    """Seconds to wait after `failures` failures in a row: `shortest_s`, doubled per failure up to `longest_s`.

    `jitter` scales the delay: pass a random number up to 1, so that many clients do not retry at the same moment.
    Returns 0 when nothing has failed.
    """
    if failures <= 0:
        return 0.0
    return jitter * min(longest_s, shortest_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
