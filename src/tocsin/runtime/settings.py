"""What can be set about a data cluster's process. One name each, for the flag, the environment and the TOML file.

`--backlog-bytes 1000`, `TOCSIN_BACKLOG_BYTES=1000` and `backlog_bytes = 1000` under `[cluster]` say the same; a flag
wins over the environment, which wins over the file. docs/settings.md lists them all, and a test sees to it.
"""

from __future__ import annotations

import ipaddress
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tocsin.cluster.gateway import FeedLimits
from tocsin.cluster.settings import ClusterSettings
from tocsin.wire.errors import Code, TocsinError

ENVIRONMENT_PREFIX = "TOCSIN_"
SECTION = "cluster"


@dataclass(frozen=True, slots=True)
class ClusterProcessSettings:
    root: str = "tocsin-data"
    """Where data lies: a folder, or any URI that Spark and Arrow both read."""
    state: str | None = None
    """A folder on this machine for catalog, feed logs and the admin token. Default: `state` inside the root."""
    catalog: str | None = None
    """SQLAlchemy URL of the catalog. Default: SQLite inside the state folder."""
    master: str = "local[*]"
    """Where Spark runs."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings handed to Spark, which win over ours."""
    host: str = "127.0.0.1"
    """The address to listen on. Anything but loopback needs TLS, or `insecure`."""
    port: int = 8571
    """The port to listen on; 0 takes a free one."""
    tls_cert: str | None = None
    """PEM file with the certificate chain."""
    tls_key: str | None = None
    """PEM file with its private key."""
    insecure: bool = False
    """Listen beyond loopback without TLS, because something in front does it."""
    executions: int = 4
    """Channels that run at the same time; more would only share the same cores."""
    maintain_s: float = 5.0
    """Pause between rounds of upkeep: merging files, forgetting what is too old."""
    stop_s: float = 30.0
    """How long a stop waits for running executions before it cancels them; they are done again at the next start."""
    heartbeat_s: float = 15.0
    """Pause after which a silent stream says that it is alive."""
    body_bytes: int = 8 << 20
    """Largest body of records."""
    record_bytes: int = 64 << 10
    """Largest record."""
    backlog_bytes: int = 256 << 20
    """Accepted and not yet in a dataset; beyond it publishers are asked to wait."""
    token_file: bool = True
    """Keep the first admin token in `<state>/admin-token`, readable by this user only, for commands on this machine."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_form: str = "auto"
    """json, console, or auto: console on a terminal."""

    def cluster(self) -> ClusterSettings:
        limits = FeedLimits(
            body_bytes=self.body_bytes, record_bytes=self.record_bytes, backlog_bytes=self.backlog_bytes
        )
        return ClusterSettings(root=self.root, state=self.state, catalog=self.catalog, limits=limits)

    def check(self) -> None:
        """Raise with the reason if these settings cannot be run with."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise _refused("tls_cert and tls_key go together: set both or none")
        for name in ("tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise _refused(f"{name}: there is no file {path}")
        if not is_loopback(self.host) and self.tls_cert is None and not self.insecure:
            raise _refused(
                f"{self.host} can be reached from other machines: give tls_cert and tls_key, or say insecure if "
                "something in front of this process encrypts"
            )
        if not 0 <= self.port <= 65535:
            raise _refused(f"port {self.port}: expected 0 to 65535")
        if self.executions < 1:
            raise _refused("executions: expected at least 1")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise _refused(f"log_level {self.log_level}: expected debug, info, warning or error")
        if self.log_form not in ("auto", "json", "console"):
            raise _refused(f"log_form {self.log_form}: expected auto, json or console")


def is_loopback(host: str) -> bool:
    """True only if every address this name stands for is on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in found)


def load_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None = None
) -> ClusterProcessSettings:
    """Flags that are None were not given."""
    values: dict[str, Any] = {}
    types = get_type_hints(ClusterProcessSettings)
    names = {entry.name for entry in fields(ClusterProcessSettings)}
    if file is not None:
        values |= _from_file(file, names)
    for name in names:
        text = environment.get(ENVIRONMENT_PREFIX + name.upper())
        if text is not None:
            values[name] = text
    values |= {name: value for name, value in flags.items() if value is not None}
    settings = ClusterProcessSettings(**{name: _typed(name, value, types[name]) for name, value in values.items()})
    settings.check()
    return settings


def _from_file(file: str, names: set[str]) -> dict[str, Any]:
    try:
        with Path(file).open("rb") as opened:
            table = tomllib.load(opened).get(SECTION, {})
    except OSError as error:
        raise _refused(f"cannot read {file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise _refused(f"{file} is not TOML: {error}") from error
    if not isinstance(table, dict):
        raise _refused(f"{file}: [{SECTION}] is a table of settings")
    for name in table:
        if name not in names:
            raise _refused(f"{file}: there is no setting {name} (there are: {', '.join(sorted(names))})")
    return table


def _typed(name: str, value: Any, kind: Any) -> Any:
    if name == "spark":
        return _spark_settings(value)
    wanted = next((option for option in get_args(kind) if option is not type(None)), kind)
    try:
        if wanted is bool and isinstance(value, str):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[value.lower()]
        if wanted is bool and not isinstance(value, bool):
            raise ValueError
        return wanted(value)
    except (ValueError, KeyError, TypeError):
        spelled = {bool: "true or false", int: "a whole number", float: "a number"}.get(wanted, "text")
        raise _refused(f"{name}: expected {spelled}, got {value!r}") from None


def _spark_settings(value: Any) -> dict[str, str]:
    """A table, or `name=value` pairs in a list or separated by commas."""
    if isinstance(value, Mapping):
        return {str(name): str(setting) for name, setting in value.items()}
    pairs = value.split(",") if isinstance(value, str) else list(value)
    found: dict[str, str] = {}
    for pair in filter(None, pairs):
        name, equals, setting = pair.partition("=")
        if not equals:
            raise _refused(f"spark: expected name=value, got {pair!r}")
        found[name.strip()] = setting.strip()
    return found


def _refused(message: str) -> TocsinError:
    return TocsinError(Code.BAD_REQUEST, message)
