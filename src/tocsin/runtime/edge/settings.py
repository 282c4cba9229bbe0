"""Settings of an edge node: one TOML file with the tables [node], [rules], [[source]] and, at the root, [sink].

    [node]
    name = "leaf-3"
    parent = "district-1"                 # missing at the root
    root = "http://127.0.0.1:8900"        # the root's process; missing at the root itself
    port = 8907
    data = "data/leaf-3"
    streams = ["Readings"]

    [rules]
    upper = 60

    [[source]]
    name = "meters"
    stream = "Readings"
    kind = "file"
    location = "meters.parquet"

    [sink]                                # at the root only
    gateway = "http://127.0.0.1:8571"

Relative paths begin at the folder of the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tocsin.policies.operators.transfer import Combine, LoadMeasure, TransferRules, TransferThresholds
from tocsin.runtime.http.callers import is_broker_id
from tocsin.runtime.http.settings import (
    ListenerSettings,
    Port,
    check_address,
    check_listener,
    is_loopback,
    load_settings,
)
from tocsin.runtime.http.settings import invalid as invalid_setting
from tocsin.wire.errors import TocsinError


@dataclass(frozen=True, slots=True)
class EdgeSettings(ListenerSettings):
    section = "node"
    prefix = "TOCSIN_EDGE_"

    port: Port = 8900
    name: Annotated[str, "Name of this node in the tree: letters, digits, dots, dashes and underscores."] = "root"
    parent: Annotated[str | None, "Name of the parent. Missing at the root."] = None
    root: Annotated[str | None, "Address of the root's process. Missing at the root itself."] = None
    address: Annotated[
        str | None, "Address that the root gives to the children of this node. Default: the one it listens on."
    ] = None
    data: Annotated[str, "Local folder for the entry log and the identity; at the root also for its database."] = (
        "tocsin-edge"
    )
    token_file: Annotated[
        str | None, "File with the secret that all nodes of the tree share. It may be missing on loopback only."
    ] = None
    memory_bytes: Annotated[int, "Budget for the state of operators and queued data, in bytes."] = 64_000_000
    cpu_share: Annotated[float, "Budget of processor time, as a share of one core. More work waits in the inbox."] = 0.9
    uplink_bytes_per_s: Annotated[
        float | None, "Budget of the data connection to the parent, in bytes per second. Default: no limit."
    ] = None
    streams: Annotated[tuple[str, ...], "Streams whose readings enter here over HTTP."] = ()
    period_s: Annotated[float, "Monitoring period T in seconds [AMI §3.3]."] = 5.0
    negotiates: Annotated[
        bool, "Start rounds of the load balancing protocol. Without it, orders still move operators."
    ] = True
    publisher_idle_s: Annotated[
        float,
        "After this many seconds without readings, a publisher, or an entry without publishers, no longer holds back "
        "the windows of the others.",
    ] = 15.0
    backlog_bytes: Annotated[int, "Most bytes of accepted readings that wait to be processed here."] = 256 << 20
    lease_s: Annotated[
        float, "Seconds after which a node without an answer of the root stops. Read at every node: use one value."
    ] = 3.0
    grace_s: Annotated[float, "Seconds beyond `lease_s` after which the root declares a silent node dead."] = 1.0
    application: Annotated[str | None, "At the root: file with statements that are applied at the start."] = None
    stop_s: Annotated[float, "Seconds that a stop waits for connections to end."] = 3.0

    @property
    def is_root(self) -> bool:
        return self.parent is None

    def check(self) -> None:
        check_listener(self)
        if not is_broker_id(self.name):
            raise invalid_setting("name: expected 1 to 128 letters, digits, dots, dashes and underscores")
        if (self.parent is None) != (self.root is None):
            raise invalid_setting("parent and root go together: the root's own file has neither")
        if self.root is not None:
            check_address("root", self.root, insecure=self.insecure)
        if self.token_file is None and not is_loopback(self.host):
            raise invalid_setting("token_file: a node that other machines can reach needs the secret of the tree")
        positive = ("memory_bytes", "cpu_share", "period_s", "publisher_idle_s", "backlog_bytes", "lease_s", "grace_s")
        for name in (*positive, "uplink_bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e15:
                raise invalid_setting(f"{name}: expected more than 0")


class RulesTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds in percent [AMI figure 11, table 5]. A load is the largest of memory, CPU and network."""

    upper: float = 60.0
    lower: float = 40.0
    target: float | None = None
    """T_t is the mean of the other two [AMI §3.3]; another value is an error."""

    def rules(self) -> TransferRules:
        if not 0 <= self.lower <= self.upper:
            raise invalid_setting("[rules]: expected 0 <= lower <= upper")
        thresholds = TransferThresholds(self.lower, self.upper)
        if self.target not in (None, thresholds.target_pct):
            raise invalid_setting(f"[rules]: target is the mean of lower and upper, {thresholds.target_pct:g}")
        return TransferRules(thresholds, LoadMeasure(1.0, 1.0, 1.0, Combine.MAXIMUM), makes_room=True)


class SourceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    stream: str
    kind: str
    location: str
    options: dict[str, str | bool | int | float] = {}


class SinkTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gateway: str
    """Address of the data cluster."""
    token_file: str | None = None


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: dict[str, Any]
    rules: RulesTable = RulesTable()
    source: list[SourceTable] = []
    sink: SinkTable | None = None


@dataclass(frozen=True, slots=True)
class NodeFile:
    """Everything in a node's file."""

    path: Path
    node: EdgeSettings
    rules: TransferRules
    sources: Sequence[SourceTable] = ()
    sink: SinkTable | None = None

    def resolve(self, path: str) -> Path:
        return self.path.parent / path

    @property
    def data(self) -> Path:
        return self.resolve(self.node.data)

    def secret(self) -> str | None:
        """The secret of the tree; None without `token_file`."""
        return _secret(self, self.node.token_file)

    def sink_secret(self) -> str | None:
        return None if self.sink is None else _secret(self, self.sink.token_file)


def _secret(file: NodeFile, path: str | None) -> str | None:
    if path is None:
        return None
    try:
        secret = file.resolve(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise invalid_setting(f"token_file: cannot read {path}: {error.strerror}") from error
    if not secret:
        raise invalid_setting(f"token_file: {path} is empty")
    return secret


def load_node_file(path: Path) -> NodeFile:
    """Read and check the file. Raises `TocsinError` with the reason if the node cannot run with it."""
    path = path.absolute()
    try:
        tables = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _Tables)
    except OSError as error:
        raise invalid_setting(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise invalid_setting(f"{path}: {error}") from error
    try:
        node = load_settings(EdgeSettings, {}, {}, str(path))
        file = NodeFile(path, node, tables.rules.rules(), tables.source, tables.sink)
        _check(file)
    except TocsinError as error:
        raise invalid_setting(f"{path.name}: {error.message}") from error
    return file


def _check(file: NodeFile) -> None:
    if file.sink is not None:
        if not file.node.is_root:
            raise invalid_setting("[sink]: only the root has a sink")
        check_address("gateway", file.sink.gateway, insecure=file.node.insecure)
    if file.node.application is not None and not file.resolve(file.node.application).is_file():
        raise invalid_setting(f"application: there is no file {file.node.application}")
    names = [source.name for source in file.sources]
    if len(set(names)) < len(names):
        raise invalid_setting("[[source]]: two sources have one name")
    for source in file.sources:
        if source.kind not in ("file", "topic"):
            raise invalid_setting(f"[[source]] {source.name}: kind is file or topic, not {source.kind}")
        if source.kind == "topic" and not source.options.get("topic"):
            raise invalid_setting(f"[[source]] {source.name}: options need the name of a topic")
        rows, speed = source.options.get("batch_rows", 1), source.options.get("speed", 0)
        if not isinstance(rows, int) or rows < 1 or isinstance(speed, str) or speed < 0:
            raise invalid_setting(f"[[source]] {source.name}: expected batch_rows from 1 on, and speed from 0 on")
    file.secret()
    file.sink_secret()
