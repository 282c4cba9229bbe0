"""`tocsin bench check`: a short form of each benchmark in one run; fails if a ratio is worse than its bar.

For `make bench-check`, before and after a change. A bar is a ratio between two things that were measured in the same
run: the product and a peer, a large and a small size, or seconds and the reference: a fixed computation in this
process, timed before each benchmark, which stands for the speed of the machine. Memory, and the answer to a surge,
which waits for timers, are compared as they are. So a slow machine alone fails nothing, but a machine that is busy with
something else does.
The short forms are small, so their bars differ from those of docs/benchmarks.md.
Checked by: each benchmark checks its own results.
Prints: for each bar its figure and whether it holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from tocsin.benchmarks.shared.harness import MISSING, announce, command

LIMIT_S = 900.0
"""The most seconds of one benchmark."""


@dataclass(frozen=True, slots=True)
class Bar:
    figure: str
    """A key of the benchmark's figures."""
    at_least: float | None = None
    at_most: float | None = None
    per_reference: bool = False
    """Compare with the seconds of the reference: a figure in seconds is divided by them, a rate is multiplied."""

    def value(self, figure: float, reference_s: float) -> float:
        if not self.per_reference:
            return figure
        return figure / reference_s if self.at_least is None else figure * reference_s

    def holds(self, value: float) -> bool:
        if self.at_least is not None and value < self.at_least:
            return False
        return self.at_most is None or value <= self.at_most

    def __str__(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}{' per reference' if self.per_reference else ''}"
        return f"≤ {self.at_most:g}{' × reference' if self.per_reference else ''}"


@dataclass(frozen=True, slots=True)
class ShortForm:
    benchmark: str
    options: Sequence[str]
    bars: Sequence[Bar]


SHORT_FORMS = (
    ShortForm(
        "fanout",
        ("--sessions", "500", "--results", "600", "--rounds", "3"),
        (Bar("ratio_nats", at_least=1.0), Bar("ratio_mosquitto", at_least=3.0)),
    ),
    ShortForm(
        "topics",
        ("--seconds", "1", "--rounds", "3", "--payloads", "128"),
        (Bar("ratio_p50_nats", at_most=2.0), Bar("ratio_rate_nats", at_least=0.5)),
    ),
    ShortForm("sessions", ("--sessions", "2000"), (Bar("kib_per_session", at_most=12.0),)),
    ShortForm(
        "edge",
        ("--readings", "100000", "--repeat", "3"),
        (Bar("ratio_bytewax_rows", at_least=1.0), Bar("ratio_arrow", at_least=0.5)),
    ),
    ShortForm(
        "partition", ("--topics", "2000", "--repeats", "3"), (Bar("plan_s_p50", at_most=2.0, per_reference=True),)
    ),
    ShortForm(
        "plan", ("--subscribers", "100000", "--brokers", "200", "--repeats", "1"), (Bar("growth", at_most=20.0),)
    ),
    ShortForm(
        "channels",
        ("--subscriptions", "100000", "--rounds", "3"),
        (Bar("growth", at_most=4.0), Bar("speed_up_over_per_subscription", at_least=1_000.0)),
    ),
    ShortForm(
        "near",
        ("--users", "20000", "--records", "5000", "--rounds", "3"),
        (Bar("spark_s_p50", at_most=15.0, per_reference=True),),
    ),
    ShortForm("ingest", ("--records", "100000", "--rounds", "3"), (Bar("worst_ratio", at_least=0.2),)),
    ShortForm("storage", ("--rows", "1000000", "--files", "4", "--rounds", "3"), (Bar("arrow_ratio", at_least=0.4),)),
    ShortForm("latency", ("--seconds", "8", "--warm-up-s", "20", "--rounds", "2"), (Bar("ratio", at_most=2.5),)),
    ShortForm(
        "many-channels",
        ("--channels", "20", "--seconds", "10", "--warm-up-s", "10", "--started-channels", "50"),
        (Bar("p95_s", at_most=20.0, per_reference=True), Bar("start_s", at_most=200.0, per_reference=True)),
    ),
    ShortForm(
        "live",
        ("--subscriptions", "50000", "--seconds", "10", "--warm-up-s", "20"),
        (Bar("growth", at_most=3.0), Bar("publish_to_result_s_p95", at_most=20.0, per_reference=True)),
    ),
    ShortForm(
        "city",
        (
            *("--subscribers", "100", "--speeds", "10", "--cold-minutes", "1", "--warm-after-minutes", "1"),
            *("--warm-minutes", "0.5", "--rounds", "5", "--round-warm-ups", "10"),
        ),
        (
            Bar("warm_continuous_p95_s", at_most=30.0, per_reference=True),
            Bar("cpu_s_per_round", at_most=20.0, per_reference=True),
        ),
    ),
    ShortForm(
        "soak",
        ("--minutes", "2", "--subscribers", "100", "--speed", "4"),
        (Bar("rss_growth", at_most=1.5), Bar("cpu_growth", at_most=2.0)),
    ),
    ShortForm(
        "hostile",
        ("--subscribers", "10", "--warm-up-s", "10", "--phase-s", "10", "--pairs", "1"),
        (Bar("ratio", at_most=2.0), Bar("most_gained_mib", at_most=64.0)),
    ),
    ShortForm("surge", ("--subscribers", "45", "--usual-s", "60"), (Bar("answer_s", at_most=30.0),)),
    ShortForm(
        "sim", ("--scenario", "paper-simulation"), (Bar("simulated_s_per_wall_s", at_least=30.0, per_reference=True),)
    ),
)
"""Every benchmark with a bar has a short form."""


def check(
    only: Annotated[str, typer.Option(help="Names of benchmarks, separated by commas. Default: all.")] = "",
) -> dict[str, Any]:
    """Run a short form of each benchmark and fail if a ratio is worse than its bar."""
    chosen = [form for form in SHORT_FORMS if not only or form.benchmark in only.split(",")]
    if unknown := sorted(set(filter(None, only.split(","))) - {form.benchmark for form in chosen}):
        raise typer.BadParameter(f"there is no short form of {', '.join(unknown)}")
    return run(chosen, _measure)


register = command(check)


def run(forms: Sequence[ShortForm], measure: Callable[[ShortForm], dict[str, Any] | None]) -> dict[str, Any]:
    """Measure each short form and compare. A benchmark without its peer is skipped; one without figures has failed."""
    figures: dict[str, Any] = {}
    failed: list[str] = []
    skipped: list[str] = []
    for form in forms:
        reference_s = _reference_s()
        measured = measure(form)
        if measured is None:
            skipped.append(form.benchmark)
            announce(f"{form.benchmark}: skipped, a peer is not installed")
            continue
        if measured.get("correct") is False:
            failed.append(f"{form.benchmark}: its results are wrong, or it gave none")
        for bar in form.bars:
            figure = measured.get(bar.figure)
            if figure is None:
                failed.append(f"{form.benchmark}: no {bar.figure}")
                continue
            value = bar.value(figure, reference_s)
            figures[f"{form.benchmark}.{bar.figure}"] = value
            verdict = "holds" if bar.holds(value) else "FAILS"
            announce(f"{form.benchmark}: {bar.figure} {value:.3g}, {bar}: {verdict}")
            if not bar.holds(value):
                failed.append(f"{form.benchmark}: {bar.figure} {value:.3g} is not {bar}")
    for problem in failed:
        announce(f"failed: {problem}")
    return {"figures": figures, "failed": failed, "skipped": skipped, "correct": not failed}


def _measure(form: ShortForm) -> dict[str, Any] | None:
    """The figures of a benchmark in a process of its own; None if its peer is not installed."""
    announce(f"bench {form.benchmark} {' '.join(form.options)}")
    program = [sys.executable, "-c", "from tocsin.cli.main import main; main()"]
    try:
        done = subprocess.run(
            [*program, "bench", form.benchmark, *form.options, "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        announce(f"{form.benchmark} took longer than {LIMIT_S:g} s")
        return {"correct": False}
    if done.returncode == MISSING:
        return None
    try:
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        announce(done.stderr[-2000:])
        return {"correct": False}
    return figures


def _reference_s() -> float:
    """Seconds of a fixed computation: numpy's sort and JSON, as the product uses both."""
    import msgspec
    import numpy as np

    values = np.random.default_rng(1).random(1_000_000)
    text = msgspec.json.encode([{"id": str(number), "value": number / 7} for number in range(50_000)])
    times_s = []
    for _ in range(3):
        began_s = time.perf_counter()
        np.sort(values)
        for _ in range(5):
            msgspec.json.decode(text)
        times_s.append(time.perf_counter() - began_s)
    return sorted(times_s)[1]
