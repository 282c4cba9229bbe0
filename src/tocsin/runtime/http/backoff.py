"""How long to wait after failures in a row: doubling from a second to a minute. Pure; who retries keeps the count."""

from __future__ import annotations

SHORTEST_S = 1.0
LONGEST_S = 60.0


def delay_s(failures: int) -> float:
    """After the first failure the shortest wait, then twice as long each time."""
    return min(LONGEST_S, SHORTEST_S * 2.0 ** min(failures - 1, 16)) if failures > 0 else 0.0
