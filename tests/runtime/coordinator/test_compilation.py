"""Policies are compiled once, in a process of their own."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tocsin.runtime.coordinator import compilation
from tocsin.runtime.coordinator.compilation import compile_beside


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records each load of the policies into this process."""
    made: list[bool] = []
    monkeypatch.setattr(compilation, "compile_policies", lambda: made.append(True))
    return made


def test_first_start_compiles_in_another_process_and_leaves_a_mark(tmp_path: Path, loads: list[bool]) -> None:
    mark, noted = tmp_path / "cache" / "mark", tmp_path / "process"
    command = f"import os; open({str(noted)!r}, 'w').write(f'{{os.getpid()}} {{os.nice(0)}}')"
    asyncio.run(compile_beside(mark, command))
    process, niceness = map(int, noted.read_text(encoding="ascii").split())
    assert process != os.getpid() and niceness > os.nice(0)
    assert mark.exists() and len(loads) == 1


def test_start_with_a_mark_loads_only(tmp_path: Path, loads: list[bool]) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    asyncio.run(compile_beside(mark, "raise SystemExit('not needed')"))
    assert len(loads) == 1


def test_failed_compilation_leaves_no_mark_and_the_coordinator_compiles(tmp_path: Path, loads: list[bool]) -> None:
    asyncio.run(compile_beside(tmp_path / "mark", "raise SystemExit(3)"))
    assert not (tmp_path / "mark").exists() and len(loads) == 1


def test_stop_does_not_wait_for_the_compiler(tmp_path: Path, loads: list[bool]) -> None:
    started = tmp_path / "started"

    async def scenario() -> None:
        command = f"import time; open({str(started)!r}, 'w').close(); time.sleep(60)"
        compiling = asyncio.create_task(compile_beside(tmp_path / "mark", command))
        async with asyncio.timeout(30):
            while not started.exists():
                await asyncio.sleep(0.01)
        compiling.cancel()
        await asyncio.gather(compiling, return_exceptions=True)

    began_s = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - began_s < 40 and not loads


def test_mark_changes_with_a_source(tmp_path: Path) -> None:
    (tmp_path / "policy.py").write_text("a = 1\n", encoding="utf-8")
    before = compilation._mark(tmp_path)
    assert compilation._mark(tmp_path) == before
    (tmp_path / "policy.py").write_text("a = 10\n", encoding="utf-8")
    assert compilation._mark(tmp_path) != before
