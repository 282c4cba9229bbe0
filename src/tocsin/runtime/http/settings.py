"""Settings of a process: declared once, read from flags, environment variables and a TOML file.

A setting is a dataclass field whose type is `Annotated` with a help text:

    port: Annotated[int, "Port to listen on."] = 8571

A field of a settings class may be another dataclass, for example the limits of the broker's logic: the annotated fields
of that dataclass are settings too. A field without a help text is no setting. Everything else follows from the
declaration: the flag `--backlog-bytes 1000`, the environment variable `TOCSIN_BACKLOG_BYTES=1000`, the line
`backlog_bytes = 1000` under `[cluster]` in the TOML file, and the tables of docs/settings.md. A flag overrides the
environment, and the environment overrides the file.

Each process has its own settings class, TOML table and environment prefix (`TOCSIN_` for the data cluster,
`TOCSIN_COORDINATOR_`, `TOCSIN_BROKER_`), so several processes can share one file and one environment.
"""

from __future__ import annotations

import ipaddress
import socket
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from tocsin.leaders.addresses import split_addresses
from tocsin.wire.errors import Code, TocsinError

Port = Annotated[int, "Port to listen on; 0 takes a free port."]


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Settings of every process that listens on a port."""

    section: ClassVar[str]
    """Name of the table in the TOML file, and of the command that starts the process."""
    prefix: ClassVar[str]
    """Prefix of the environment variables."""

    host: Annotated[str, "Address to listen on. Any address but loopback needs TLS, or `insecure`."] = "127.0.0.1"
    port: Port = 0
    tls_cert: Annotated[str | None, "PEM file with the certificate chain. Needs `tls_key` as well."] = None
    tls_key: Annotated[str | None, "PEM file with the private key of the certificate."] = None
    insecure: Annotated[
        bool, "Allow connections beyond loopback without TLS, for example behind a proxy that encrypts."
    ] = False
    login_s: Annotated[float, "Seconds a connection may take to log in, or to send the token of its request."] = 10.0
    half_open: Annotated[int, "Most connections that have not logged in. One more closes the oldest of them."] = 2_000
    open_metrics: Annotated[
        bool,
        "Serve `/metrics` without a token if `host` is loopback. Not for a process behind a proxy: every client of the "
        "proxy could read them.",
    ] = False
    log_level: Annotated[str, "`debug` (also logs every request), `info`, `warning` or `error`."] = "info"
    log_form: Annotated[str, "`json`, `console`, or `auto`: console on a terminal, JSON otherwise."] = "auto"
    audit: Annotated[
        str | None,
        "File for the audit log: a JSON line for each change, connection and refusal. Default: no audit log.",
    ] = None
    audit_bytes: Annotated[
        int, "Largest size of that file in bytes; then it is renamed to `<audit>.1`, `.2` and so on."
    ] = 64 << 20
    audit_files: Annotated[int, "Files of the audit log that are kept, with the present one."] = 8

    def check(self) -> None:
        """Raise `TocsinError` with the reason if the process cannot run with these settings."""
        check_listener(self)


def check_listener(settings: ListenerSettings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise invalid("tls_cert and tls_key go together: set both or none")
    for name in ("tls_cert", "tls_key"):
        check_file(settings, name)
    if not is_loopback(settings.host) and settings.tls_cert is None and not settings.insecure:
        raise invalid(
            f"{settings.host} can be reached from other machines: set tls_cert and tls_key, or set insecure if "
            "a proxy in front of this process encrypts"
        )
    if not 0 <= settings.port <= 65535:
        raise invalid(f"port {settings.port}: expected 0 to 65535")
    if settings.audit_bytes < 4_096 or settings.audit_files < 1:
        raise invalid("expected audit_bytes of at least 4096 and audit_files of at least 1")
    if settings.half_open < 1 or settings.login_s <= 0:
        raise invalid("half_open: expected at least 1" if settings.half_open < 1 else "login_s: expected more than 0")
    if settings.log_level not in ("debug", "info", "warning", "error"):
        raise invalid(f"log_level {settings.log_level}: expected debug, info, warning or error")
    if settings.log_form not in ("auto", "json", "console"):
        raise invalid(f"log_form {settings.log_form}: expected auto, json or console")


def check_file(settings: ListenerSettings, name: str) -> None:
    """Raise if the setting `name` is the path of a file that does not exist."""
    path = getattr(settings, name)
    if path is not None and not Path(path).is_file():
        raise invalid(f"{name}: there is no file {path}")


def check_peer(settings: ListenerSettings, name: str) -> None:
    """The setting `name` is the address of a server that gets a token: raise if the token would travel unencrypted."""
    address: str | None = getattr(settings, name)
    if address is not None:
        for one in split_addresses(address) or [address]:
            check_address(name, one, insecure=settings.insecure)


def check_address(name: str, address: str, *, insecure: bool) -> None:
    scheme, _, rest = address.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise invalid(f"{name}: expected an address such as https://cluster.example:8571, got {address!r}")
    host = rest.partition("/")[0].rpartition("@")[2]
    host = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
    if scheme == "http" and not insecure and not is_loopback(host.strip("[]")):
        raise invalid(f"{name}: a token would reach {address} unencrypted; use https, or set insecure")


def is_loopback(host: str) -> bool:
    """True if every address of this host name is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        addresses = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return bool(addresses) and all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in addresses)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: Any
    """The type of the setting; for `str | None` this is `str`."""
    default: Any
    help: str
    path: tuple[str, ...]
    """Fields that lead from the settings object to the nested dataclass that declares this setting; () for its own."""


def settings_of(kind: type[ListenerSettings]) -> list[Setting]:
    """Every setting of a process, in the order of declaration."""
    return list(_declared(kind(), ()))


def _declared(values: Any, path: tuple[str, ...]) -> Iterator[Setting]:
    hints = get_type_hints(type(values), include_extras=True)
    for entry in fields(values):
        hint, default = hints[entry.name], getattr(values, entry.name)
        if get_origin(hint) is Annotated:
            declared, help = get_args(hint)
            without_none = [option for option in get_args(declared) if option is not type(None)]
            optional = type(None) in get_args(declared)
            yield Setting(entry.name, without_none[0] if optional else declared, default, help, path)
        elif is_dataclass(default):
            yield from _declared(default, (*path, entry.name))


S = TypeVar("S", bound=ListenerSettings)


def load_settings(
    kind: type[S], flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None = None
) -> S:
    """Read and check the settings of a process. A flag that is None was not given."""
    settings = {setting.name: setting for setting in settings_of(kind)}
    values: dict[str, Any] = {}
    if file is not None:
        values |= _from_file(file, kind.section, settings.keys())
    for name in settings:
        text = environment.get(kind.prefix + name.upper())
        if text is not None:
            values[name] = text
    values |= {name: value for name, value in flags.items() if value is not None}
    changes: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, value in values.items():
        setting = settings[name]
        changes.setdefault(setting.path, {})[name] = _converted(name, value, setting.kind)
    try:
        loaded: S = _replaced(kind(), changes, ())
    except ValueError as error:  # a nested dataclass rejects the value
        raise invalid(str(error)) from None
    loaded.check()
    return loaded


def _replaced(values: Any, changes: Mapping[tuple[str, ...], dict[str, Any]], path: tuple[str, ...]) -> Any:
    """A copy of `values`, changed by `changes[path]`; its nested dataclasses are changed the same way."""
    nested = {
        entry.name: _replaced(getattr(values, entry.name), changes, (*path, entry.name))
        for entry in fields(values)
        if is_dataclass(getattr(values, entry.name))
    }
    return replace(values, **nested, **changes.get(path, {}))


def _from_file(file: str, section: str, names: Collection[str]) -> dict[str, Any]:
    try:
        with Path(file).open("rb") as opened:
            table = tomllib.load(opened).get(section, {})
    except OSError as error:
        raise invalid(f"cannot read {file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise invalid(f"{file} is not TOML: {error}") from error
    if not isinstance(table, dict):
        raise invalid(f"{file}: [{section}] must be a table of settings")
    for name in table:
        if name not in names:
            raise invalid(f"{file}: there is no setting {name} (there are: {', '.join(sorted(names))})")
    return table


def _converted(name: str, value: Any, kind: Any) -> Any:
    """Convert a value to the type of its setting. Values from the environment are text; a TOML file has typed ones."""
    if get_origin(kind) is Mapping:
        return _pairs(name, value)
    try:
        if kind is bool and isinstance(value, str):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[value.lower()]
        if kind is bool and not isinstance(value, bool):
            raise ValueError
        return kind(value)
    except (ValueError, KeyError, TypeError):
        if issubclass(kind, StrEnum):
            raise invalid(f"{name} {value}: expected one of {', '.join(kind)}") from None
        expected = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
        raise invalid(f"{name}: expected {expected}, got {value!r}") from None


def _pairs(setting: str, value: Any) -> dict[str, str]:
    """The value as a dictionary. It is a TOML table, or `name=value` pairs in a list or separated by commas."""
    if isinstance(value, Mapping):
        return {str(name): str(text) for name, text in value.items()}
    pairs: dict[str, str] = {}
    for pair in filter(None, value.split(",") if isinstance(value, str) else value):
        name, equals, text = pair.partition("=")
        if not equals:
            raise invalid(f"{setting}: expected name=value, got {pair!r}")
        pairs[name.strip()] = text.strip()
    return pairs


def invalid(message: str) -> TocsinError:
    return TocsinError(Code.BAD_REQUEST, message)
