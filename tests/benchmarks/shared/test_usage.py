"""CPU time and memory of processes between two moments, and the description of the machine."""

from __future__ import annotations

import pytest

from tocsin.benchmarks.shared.machine import described_machine, program_version
from tocsin.benchmarks.shared.usage import Usage, cores_between, memory_between

SAMPLES = [
    Usage(100.0, {"spark": 10.0, "broker-1": 1.0}, {"spark": 900.0, "broker-1": 80.0}),
    Usage(110.0, {"spark": 25.0, "broker-1": 1.5}, {"spark": 1000.0, "broker-1": 82.0}),
    Usage(120.0, {"spark": 30.0, "broker-1": 2.0}, {"spark": 1100.0, "broker-1": 84.0}),
]


def test_cores_are_cpu_time_over_the_time_between_samples() -> None:
    assert cores_between(SAMPLES, 100.0, 120.0) == pytest.approx({"spark": 1.0, "broker-1": 0.05})
    assert cores_between(SAMPLES, 105.0, 125.0) == pytest.approx({"spark": 0.5, "broker-1": 0.05})
    assert cores_between(SAMPLES, 115.0, 125.0) == {}, "one sample has no duration"


def test_memory_is_the_mean_of_the_samples_inside() -> None:
    assert memory_between(SAMPLES, 105.0, 125.0) == {"spark": 1050.0, "broker-1": 83.0}
    assert memory_between(SAMPLES, 0.0, 1.0) == {}


def test_machine_names_processor_and_versions() -> None:
    machine = described_machine()
    assert machine["cpu"] and machine["cores"] >= 1
    assert machine["spark"].startswith("4.") and machine["python"].startswith("3.")


def test_missing_peer_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.benchmarks.shared.machine.find_program", lambda program: None)
    assert program_version("nats-server") is None
