"""Settings are read from flags, environment and file, converted to their type and checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tocsin.cluster.result_server.settings import ResultServerSettings
from tocsin.cluster.server.settings import ClusterProcessSettings
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.settings import ListenerSettings, is_loopback, load_settings
from tocsin.wire.errors import TocsinError

PROCESSES: list[type[ListenerSettings]] = [
    ClusterProcessSettings,
    ResultServerSettings,
    BrokerSettings,
    CoordinatorSettings,
]


def test_processes_share_neither_a_table_nor_a_prefix() -> None:
    assert len({kind.section for kind in PROCESSES}) == len(PROCESSES)
    assert len({kind.prefix for kind in PROCESSES}) == len(PROCESSES)


def test_flag_overrides_environment_and_environment_overrides_file(tmp_path: Path) -> None:
    file = tmp_path / "tocsin.toml"
    file.write_text('[cluster]\nport = 1\nexecutions = 2\nroot = "from-file"\n', encoding="utf-8")
    flags, environment = {"port": 3, "root": None}, {"TOCSIN_PORT": "2", "TOCSIN_EXECUTIONS": "7"}
    settings = load_settings(ClusterProcessSettings, flags, environment, str(file))
    assert (settings.port, settings.executions, settings.cluster.root) == (3, 7, "from-file")


def test_values_from_the_environment_are_converted_to_their_type() -> None:
    environment = {"TOCSIN_INSECURE": "yes", "TOCSIN_STOP_S": "1.5", "TOCSIN_SPARK": "a=b, c=d"}
    settings = load_settings(ClusterProcessSettings, {}, environment)
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
def test_invalid_value_is_refused_with_the_expected_form(environment: dict[str, str], expected: str) -> None:
    with pytest.raises(TocsinError, match=re.escape(expected)):
        load_settings(ClusterProcessSettings, {}, environment)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"placement": "best"}, "placement best: expected one of nearest, round-robin, random, least-loaded"),
        ({"alpha": -1}, "alpha: -1.0 is below 0"),
        ({"tick_s": 0}, "tick_s: expected more than 0"),
        ({"migrations": 0}, "migrations: expected more than 0"),
        ({"suspect_s": 20}, "expected heartbeat_s < suspect_s <= dead_s"),
    ],
)
def test_invalid_setting_of_the_coordinators_logic_is_refused(flags: dict[str, object], expected: str) -> None:
    with pytest.raises(TocsinError, match=re.escape(expected)):
        load_settings(CoordinatorSettings, flags, {})


def test_unknown_name_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tocsin.toml"
    file.write_text("[cluster]\nprot = 1\n", encoding="utf-8")
    with pytest.raises(TocsinError, match="there is no setting prot"):
        load_settings(ClusterProcessSettings, {}, {}, str(file))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "no-such-host.invalid"])
def test_public_address_needs_tls_or_insecure(host: str) -> None:
    with pytest.raises(TocsinError, match="other machines"):
        load_settings(ClusterProcessSettings, {"host": host}, {})
    assert load_settings(ClusterProcessSettings, {"host": host, "insecure": True}, {}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses_are_recognised(host: str) -> None:
    assert is_loopback(host)
