"""What a node measures of itself."""

from __future__ import annotations

from tocsin.runtime.edge.measures import OverloadLog


def test_longest_overload_is_kept_and_a_lasting_one_counts_until_now() -> None:
    log = OverloadLog(60.0)
    for now_s, load_pct in ((0.0, 60.0), (5.0, 61.0), (6.0, 90.0), (7.5, 60.0), (10.0, 70.0), (11.0, 50.0)):
        log.look(load_pct, now_s)
    assert (log.total, log.longest_s(20.0)) == (2, 2.5)
    log.look(99.0, 20.0)
    assert (log.total, log.longest_s(21.0), log.longest_s(24.0)) == (3, 2.5, 4.0)
