"""Settings: flags over environment over file, each typed, each documented."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tocsin.cli.main import make_app
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.settings import ListenerSettings, is_loopback, load_settings
from tocsin.wire.errors import TocsinError

PROCESSES: list[type[ListenerSettings]] = [ClusterProcessSettings, BrokerSettings, CoordinatorSettings]
"""The command that starts a process has the name of its section."""
DOCUMENTED = Path(__file__).parents[3] / "docs" / "settings.md"


def names_of(kind: type[ListenerSettings]) -> list[str]:
    return [entry.name for entry in fields(kind)]


@pytest.mark.parametrize("kind", PROCESSES)
def test_every_setting_is_documented_and_nothing_else(kind: type[ListenerSettings]) -> None:
    parts = re.split(r"^## ", DOCUMENTED.read_text(encoding="utf-8"), flags=re.MULTILINE)
    [own] = [part for part in parts if f"`[{kind.section}]`" in part.partition("\n")[0]]
    rows = re.findall(r"^\| `(\w+)` \|", own, re.MULTILINE)
    assert sorted(rows) == sorted(names_of(kind))


@pytest.mark.parametrize("kind", PROCESSES)
def test_every_setting_is_a_flag_of_its_command(kind: type[ListenerSettings]) -> None:
    runner = CliRunner()
    shown = runner.invoke(make_app(), [kind.section, "--help"], env={"COLUMNS": "300", "NO_COLOR": "1"}).output
    for name in names_of(kind):
        assert f"--{name.replace('_', '-')}" in shown


def test_processes_share_neither_a_table_nor_a_prefix() -> None:
    assert len({kind.section for kind in PROCESSES}) == len(PROCESSES)
    assert len({kind.prefix for kind in PROCESSES}) == len(PROCESSES)


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tocsin.toml"
    file.write_text('[cluster]\nport = 1\nexecutions = 2\nroot = "from-file"\n', encoding="utf-8")
    settings = load_settings(
        ClusterProcessSettings, {"port": 3, "root": None}, {"TOCSIN_PORT": "2", "TOCSIN_EXECUTIONS": "7"}, str(file)
    )
    assert (settings.port, settings.executions, settings.root) == (3, 7, "from-file")


def test_values_from_the_environment_are_typed() -> None:
    settings = load_settings(
        ClusterProcessSettings, {}, {"TOCSIN_INSECURE": "yes", "TOCSIN_STOP_S": "1.5", "TOCSIN_SPARK": "a=b, c=d"}
    )
    assert settings.insecure is True and settings.stop_s == 1.5 and settings.spark == {"a": "b", "c": "d"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TOCSIN_PORT": "many"}, "port: expected a whole number"),
        ({"TOCSIN_PORT": "70000"}, "port 70000"),
        ({"TOCSIN_INSECURE": "perhaps"}, "insecure: expected true or false"),
        ({"TOCSIN_SPARK": "nothing"}, "expected name=value"),
        ({"TOCSIN_EXECUTIONS": "0"}, "at least 1"),
        ({"TOCSIN_TLS_CERT": "/nowhere"}, "go together"),
        ({"TOCSIN_LOG_FORM": "xml"}, "expected auto, json or console"),
    ],
)
def test_what_cannot_be_is_refused_with_what_was_expected(environment: dict[str, str], expected: str) -> None:
    with pytest.raises(TocsinError, match=re.escape(expected)):
        load_settings(ClusterProcessSettings, {}, environment)


def test_an_unknown_name_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tocsin.toml"
    file.write_text("[cluster]\nprot = 1\n", encoding="utf-8")
    with pytest.raises(TocsinError, match="there is no setting prot"):
        load_settings(ClusterProcessSettings, {}, {}, str(file))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "no-such-host.invalid"])
def test_a_public_address_needs_tls_or_the_word_insecure(host: str) -> None:
    with pytest.raises(TocsinError, match="other machines"):
        load_settings(ClusterProcessSettings, {"host": host}, {})
    assert load_settings(ClusterProcessSettings, {"host": host, "insecure": True}, {}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_loopback(host: str) -> None:
    assert is_loopback(host)
