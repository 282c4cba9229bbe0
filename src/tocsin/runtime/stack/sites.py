"""Sites on one machine, each from one TOML file: a coordinator, a head and edges [ePEER §4.2, figure 4-5].

    [site]
    name = "ntwc1"
    root = "data/ntwc1"
    coordinator_port = 8570
    broker_port = 8600             # of the head; the edges get the following ports. 0 takes free ports
    edges = 2

    [[neighbour]]                  # as in `runtime.coordinator.neighbour_file`
    site = "rtwc1"
    coordinator = "http://127.0.0.1:8580"
    token_file = "data/ntwc1/rtwc1.token"

    [coordinator]                  # further settings, as for `tocsin coordinator` and `tocsin broker`
    topic_lease_s = 2.0

Sites that are started together make the tokens for each other that do not exist yet.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tocsin.runtime.coordinator.neighbour_file import SITE_NAME, NeighbourTable, neighbour_tables
from tocsin.runtime.coordinator.server import KEY_FILE
from tocsin.runtime.http.callers import is_broker_id
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.listening import write_secret
from tocsin.runtime.http.settings import invalid
from tocsin.runtime.stack.stack import Stack, StackSettings, Via

HEAD = "broker-1"


class SiteTable(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    root: str = "tocsin-data"
    coordinator_port: int = 8570
    broker_port: int = 8600
    edges: int = 2


@dataclass(frozen=True, slots=True)
class Reach:
    """Other addresses than their own for the processes of a site, for emulated links between sites."""

    via: Via
    sources: Mapping[str, str]
    """Broker → the local address from which it connects to neighbours."""


class Site:
    """One site of this machine."""

    def __init__(self, file: Path, logs: Path | None = None, reach: Reach | None = None) -> None:
        self.file = file.absolute()
        self.table = _read(self.file)
        self.neighbours: list[NeighbourTable] = neighbour_tables(self.file)
        self.stack = Stack(
            StackSettings(
                self.file.parent / self.table.root,
                1 + self.table.edges,
                coordinator_port=self.table.coordinator_port,
                broker_port=self.table.broker_port,
                settings=str(self.file),
                logs=logs,
                data_cluster=False,
                coordinator={"site": self.table.name, "neighbours": str(self.file)},
                broker_flags=site_roles(1 + self.table.edges),
                sources={} if reach is None else reach.sources,
                via=None if reach is None else reach.via,
            )
        )

    def write_token(self, neighbour: str, path: Path) -> None:
        """Make a token by which a neighbour reaches this site."""
        self.stack.coordinator_state.mkdir(parents=True, exist_ok=True, mode=0o700)
        signer = Signer.load_or_create(self.stack.coordinator_state / KEY_FILE)
        scopes, identity = [f"site:{neighbour}", "receive:#"], secrets.token_hex(8)
        token = signer.sign(f"site-{neighbour}", scopes, now_s=time.time(), identity=identity, lifetime_s=None)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_secret(path, token)

    def described(self) -> dict[str, Any]:
        return {"site": self.table.name} | self.stack.described()


class Sites:
    def __init__(
        self, files: Sequence[Path], logs: Path | None = None, reach: Mapping[str, Reach] | None = None
    ) -> None:
        """`logs`: a folder with one folder of log files per site. `reach`: by the name of the file without ending."""
        self.sites: dict[str, Site] = {}
        for file in files:
            folder = None if logs is None else logs / file.stem
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            site = Site(file, folder, None if reach is None else reach[file.stem])
            if site.table.name in self.sites:
                raise invalid(f"two files describe the site {site.table.name}")
            self.sites[site.table.name] = site

    async def start(self) -> None:
        """Return when all processes of all sites are up. Call `stop` even if this raises."""
        for name, site in self.sites.items():
            for neighbour in site.neighbours:
                path = site.file.parent / neighbour.token_file
                if neighbour.site in self.sites and not path.exists():
                    self.sites[neighbour.site].write_token(name, path)
        await asyncio.gather(*(site.stack.start() for site in self.sites.values()))

    async def stop(self) -> None:
        await asyncio.gather(*(site.stack.stop() for site in self.sites.values()))


def site_roles(brokers: int) -> dict[str, dict[str, str]]:
    """The flags of so many brokers: the first is the head, the others are edges that stand in for it."""
    edges = [f"broker-{number}" for number in range(2, 1 + brokers)]
    return {HEAD: {"role": "head"}} | {edge: {"role": "edge", "standby": ""} for edge in edges}


def _read(file: Path) -> SiteTable:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8")).get("site")
        if table is None:
            raise invalid(f"{file}: expected a table [site] with the name of the site")
        site = msgspec.convert(table, SiteTable)
    except OSError as error:
        raise invalid(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise invalid(f"{file}: [site]: {error}") from error
    if not is_broker_id(site.name):
        raise invalid(f"{file}: {SITE_NAME}, not {site.name!r}")
    if not 0 <= site.edges <= 100:
        raise invalid(f"{file}: edges: expected 0 to 100")
    return site
