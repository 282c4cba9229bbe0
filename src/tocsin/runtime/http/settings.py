"""What can be set about a process. One name each, for the flag, the environment and the TOML file.

`--backlog-bytes 1000`, `TOCSIN_BACKLOG_BYTES=1000` and `backlog_bytes = 1000` under `[cluster]` say the same; a flag
wins over the environment, which wins over the file. docs/settings.md lists them all, and a test sees to it.

Each kind of process has a dataclass of its own on top of `ListenerSettings`, a table of its own in the file and its own
prefix in the environment (`TOCSIN_` for the data cluster, `TOCSIN_COORDINATOR_`, `TOCSIN_BROKER_`), so that several
of them can share one file and one environment. This module has what they share.
"""

from __future__ import annotations

import ipaddress
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from tocsin.wire.errors import Code, TocsinError


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """What every process that listens can be told."""

    section: ClassVar[str]
    """The table of the TOML file."""
    prefix: ClassVar[str]
    """Of the names in the environment."""

    host: str = "127.0.0.1"
    """The address to listen on. Anything but loopback needs TLS, or `insecure`."""
    port: int = 0
    """The port to listen on; 0 takes a free one."""
    tls_cert: str | None = None
    """PEM file with the certificate chain."""
    tls_key: str | None = None
    """PEM file with its private key."""
    insecure: bool = False
    """Listen beyond loopback without TLS, because something in front does it."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_form: str = "auto"
    """json, console, or auto: console on a terminal."""

    def check(self) -> None:
        """Raise with the reason if these settings cannot be run with."""
        check_listener(self)


def check_listener(settings: ListenerSettings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise refused("tls_cert and tls_key go together: set both or none")
    for name in ("tls_cert", "tls_key"):
        path = getattr(settings, name)
        if path is not None and not Path(path).is_file():
            raise refused(f"{name}: there is no file {path}")
    if not is_loopback(settings.host) and settings.tls_cert is None and not settings.insecure:
        raise refused(
            f"{settings.host} can be reached from other machines: give tls_cert and tls_key, or say insecure if "
            "something in front of this process encrypts"
        )
    if not 0 <= settings.port <= 65535:
        raise refused(f"port {settings.port}: expected 0 to 65535")
    if settings.log_level not in ("debug", "info", "warning", "error"):
        raise refused(f"log_level {settings.log_level}: expected debug, info, warning or error")
    if settings.log_form not in ("auto", "json", "console"):
        raise refused(f"log_form {settings.log_form}: expected auto, json or console")


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


S = TypeVar("S", bound=ListenerSettings)


def load(kind: type[S], flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None = None) -> S:
    """Settings of one kind of process, checked. Flags that are None were not given."""
    values: dict[str, Any] = {}
    types = get_type_hints(kind)
    names = {entry.name for entry in fields(kind)}
    if file is not None:
        values |= _from_file(file, kind.section, names)
    for name in names:
        text = environment.get(kind.prefix + name.upper())
        if text is not None:
            values[name] = text
    values |= {name: value for name, value in flags.items() if value is not None}
    settings = kind(**{name: _typed(name, value, types[name]) for name, value in values.items()})
    settings.check()
    return settings


def _from_file(file: str, section: str, names: set[str]) -> dict[str, Any]:
    try:
        with Path(file).open("rb") as opened:
            table = tomllib.load(opened).get(section, {})
    except OSError as error:
        raise refused(f"cannot read {file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise refused(f"{file} is not TOML: {error}") from error
    if not isinstance(table, dict):
        raise refused(f"{file}: [{section}] is a table of settings")
    for name in table:
        if name not in names:
            raise refused(f"{file}: there is no setting {name} (there are: {', '.join(sorted(names))})")
    return table


def _typed(name: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is Mapping:
        return _pairs(name, value)
    if get_origin(kind) is tuple:
        return tuple(filter(None, (part.strip() for part in value.split(",")))) if isinstance(value, str) else (*value,)
    wanted = next((option for option in get_args(kind) if option is not type(None)), kind)
    try:
        if wanted is bool and isinstance(value, str):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[value.lower()]
        if wanted is bool and not isinstance(value, bool):
            raise ValueError
        return wanted(value)
    except (ValueError, KeyError, TypeError):
        spelled = {bool: "true or false", int: "a whole number", float: "a number"}.get(wanted, "text")
        raise refused(f"{name}: expected {spelled}, got {value!r}") from None


def _pairs(setting: str, value: Any) -> dict[str, str]:
    """A table, or `name=value` pairs in a list or separated by commas."""
    if isinstance(value, Mapping):
        return {str(name): str(given) for name, given in value.items()}
    pairs = value.split(",") if isinstance(value, str) else list(value)
    found: dict[str, str] = {}
    for pair in filter(None, pairs):
        name, equals, given = pair.partition("=")
        if not equals:
            raise refused(f"{setting}: expected name=value, got {pair!r}")
        found[name.strip()] = given.strip()
    return found


def refused(message: str) -> TocsinError:
    return TocsinError(Code.BAD_REQUEST, message)
