"""The settings of the three server processes stay as users know them: flags, environment variables, defaults, pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tocsin.cli.main import make_app
from tocsin.cluster.result_server.settings import ResultServerSettings
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.settings import ListenerSettings, Setting, load_settings, settings_of

PROCESSES: list[type[ListenerSettings]] = [
    ClusterProcessSettings,
    ResultServerSettings,
    BrokerSettings,
    CoordinatorSettings,
]
FROZEN = Path(__file__).parent / "process_settings.txt"
SCRIPT = Path(__file__).parents[2] / "scripts" / "settings_tables.py"


def frozen(kind: type[ListenerSettings]) -> list[tuple[str, ...]]:
    """(flag, environment variable, default) of each setting. A new setting needs a new line in the file."""
    lines = FROZEN.read_text(encoding="utf-8").splitlines()
    return [tuple(line.split("  ")[1:]) for line in lines if line.startswith(f"{kind.section}  ")]


def flag(setting: Setting) -> str:
    name = setting.name.replace("_", "-")
    return f"--{name} / --no-{name}" if setting.default is True else f"--{name}"


@pytest.mark.parametrize("kind", PROCESSES)
def test_settings_have_the_frozen_names_and_defaults(kind: type[ListenerSettings]) -> None:
    declared = [(flag(entry), kind.prefix + entry.name.upper(), str(entry.default)) for entry in settings_of(kind)]
    assert sorted(declared) == sorted(frozen(kind))


@pytest.mark.parametrize("kind", PROCESSES)
def test_help_lists_the_frozen_flags_and_no_others(kind: type[ListenerSettings]) -> None:
    environment = {"COLUMNS": "300", "NO_COLOR": "1"}
    text = CliRunner().invoke(make_app(), [kind.section, "--help"], env=environment).output
    shown = re.findall(r"^  (--\S+(?: / --\S+)?)", text.partition("Options:")[2], re.MULTILINE)
    assert sorted(shown) == sorted([*(entry[0] for entry in frozen(kind)), "--settings", "--json", "--help"])


@pytest.mark.parametrize("kind", PROCESSES)
def test_setting_names_are_unique_and_have_help(kind: type[ListenerSettings]) -> None:
    declared = settings_of(kind)
    assert len({setting.name for setting in declared}) == len(declared)
    assert all(setting.help.endswith(".") for setting in declared)


def test_settings_of_nested_dataclasses_are_loaded_into_them() -> None:
    flags = {"dead_s": 20, "placement": "random", "alpha": "0.3", "port": 0}
    settings = load_settings(CoordinatorSettings, flags, {"TOCSIN_COORDINATOR_BALANCING": "no"})
    assert (settings.port, settings.rules.dead_s, settings.rules.placement) == (0, 20.0, "random")
    assert (settings.rules.balancing, settings.rules.balance.alpha) == (False, 0.3)
    assert settings.rules.balance.beta_bytes_per_s == 1_000.0, "a process has other defaults than a simulation"


def test_page_of_settings_matches_the_declarations() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
