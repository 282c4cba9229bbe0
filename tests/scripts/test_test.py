"""`make test` repeats a few failed tests alone, and fails if one of them fails again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test.py"
FAILS_ONCE = """
from pathlib import Path
def test_fails_once():
    mark = Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        raise AssertionError
"""
FAILS = "def test_fails():\n    raise AssertionError\n"
PASSES = "def test_passes():\n    pass\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_test", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    (tmp_path / "first" / "test_passes.py").write_text(PASSES)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to load
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "HALVES", (("first",), ("second",)))
    return module


def test_failure_that_passes_alone_is_named_and_forgiven(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "second" / "test_once.py").write_text(FAILS_ONCE)
    assert script.main([]) == 0
    printed = capsys.readouterr().out
    assert "failed beside other tests:\n  second/test_once.py::test_fails_once\n" in printed
    assert "All tests passed" in printed


def test_test_that_fails_again_alone_fails_the_run(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "second" / "test_always.py").write_text(FAILS)
    (tmp_path / "first" / "test_once.py").write_text(FAILS_ONCE)
    assert script.main([]) == script.TESTS_FAILED
    assert "Not all tests passed" in capsys.readouterr().out


def test_file_that_cannot_be_imported_is_not_repeated(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "second" / "test_broken.py").write_text("import nothing_of_this_name\n")
    assert script.main([]) > script.TESTS_FAILED
