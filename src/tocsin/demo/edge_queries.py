"""The queries of the edge scenarios: figure 3 of the thesis, and further ones that give a node operators to give away.

"We could monitor the average consumption and filter out suspicious values at different levels: end user, neighborhood
and district" [AMI §1.1, figure 3]. The thesis states neither windows nor thresholds.
"""

from __future__ import annotations

from typing import Final

from tocsin.experiments.edge_rows import EdgeSelect

AREA_S: Final = 2
"""Windows of neighbourhoods and districts, in seconds: short, so that a run shows when an area has results again."""
AREAS: Final = "NeighbourhoodUse"
LATENESS: Final = "500 MILLISECONDS"
LATENESS_S: Final = 0.5
BULK: Final = "Bulk"
BULK_DECLARATION: Final = f"CREATE EDGE STREAM {BULK} (item STRING, ts TIMESTAMP, amount DOUBLE) TIME ts;"
_HOUR_US: Final = 3_600_000_000


def figure_3(user_s: int) -> list[EdgeSelect]:
    """Average and filter per user, neighbourhood and district. `user_s` is the window of users in seconds."""
    return [
        _average("UserUse", "meter", user_s, 2.0),
        _average(AREAS, "neighbourhood", AREA_S, 0.25),
        _average("DistrictUse", "district", AREA_S, 0.25),
    ]


def _average(name: str, key: str, window_s: int, above: float) -> EdgeSelect:
    select = (
        f"SELECT {key}, window.start AS since, AVG(kwh) AS mean, SUM(kwh) AS total, COUNT(*) AS readings "  # noqa: S608
        f"FROM Readings GROUP BY {key}, WINDOW(ts, '{window_s} seconds') HAVING AVG(kwh) > {above}"
    )
    return EdgeSelect(name, select, (key, "since"), window_s * 1_000_000)


def users_above(thresholds: int, user_s: int) -> list[EdgeSelect]:
    """Per user the readings above each of several thresholds: as many operators of the same kind at each leaf."""
    queries = []
    for number in range(1, thresholds + 1):
        select = (
            "SELECT meter, window.start AS since, MAX(kwh) AS most, COUNT(*) AS readings FROM Readings "  # noqa: S608
            f"WHERE kwh > {number / 64} GROUP BY meter, WINDOW(ts, '{user_s} seconds') HAVING MAX(kwh) > 4.0"
        )
        queries.append(EdgeSelect(f"UserPeak{number}", select, ("meter", "since"), user_s * 1_000_000))
    return queries


def bulk() -> EdgeSelect:
    """One window of an hour with many keys: its operator has a state of many megabytes, which transfers carry."""
    select = (
        "SELECT item, window.start AS since, SUM(amount) AS total, COUNT(*) AS n FROM Bulk "
        "GROUP BY item, WINDOW(ts, '1 hour') HAVING SUM(amount) > 15.5"
    )
    return EdgeSelect(BULK + "Use", select, ("item", "since"), _HOUR_US)
