"""`tocsin bench sessions` at a toy size."""

from __future__ import annotations

import asyncio

from tocsin.benchmarks import sessions


def test_every_session_receives_results_also_with_tls() -> None:
    measured = asyncio.run(sessions.measure(sessions=60, pool=10, results=4, idle_s=0.5, tls=True))
    assert measured["alive"] == 60 * 3 * 4 and measured["correct"] and measured["bytes_per_session"] > 0
    assert measured["tls_kib_per_session"] > measured["kib_per_session"] > 0
    assert measured["kib_per_session_after_delivery"] > 0 and "kernel_kib_per_session" in measured
