"""`tocsin bench sessions` at a toy size."""

from __future__ import annotations

import asyncio

from tocsin.benchmarks import sessions


def test_every_session_receives_results_at_the_end() -> None:
    measured = asyncio.run(sessions.measure(sessions=60, pool=10, idle_s=0.5))
    assert measured["alive"] == 60 * 3 and measured["correct"] and measured["bytes_per_session"] > 0
