"""The neighbours of a site, from a TOML file with a table for each of them:

    [[neighbour]]
    site = "rtwc1"
    coordinator = "https://rtwc1.example:8570"
    token_file = "rtwc1.token"     # the neighbour's administrator made it: scopes site:<this site> and receive:<topics>
    ca = "rtwc1.pem"               # only if the system does not know the authority

Paths are relative to the file.
"""

from __future__ import annotations

import ssl
import tomllib
from pathlib import Path

import msgspec

from tocsin.runtime.http.callers import is_broker_id
from tocsin.runtime.http.settings import check_address, invalid
from tocsin.wire.site_link import NeighbourAccess

SITE_NAME = "the name of a site has 1 to 128 letters, digits, dots, dashes and underscores"


class NeighbourTable(msgspec.Struct, forbid_unknown_fields=True):
    site: str
    coordinator: str
    token_file: str
    ca: str | None = None


def neighbour_tables(file: Path) -> list[NeighbourTable]:
    """The tables of a file. Raises TocsinError with the reason if it is not valid."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        tables = msgspec.convert(content.get("neighbour", []), list[NeighbourTable])
    except OSError as error:
        raise invalid(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise invalid(f"{file}: [[neighbour]]: {error}") from error
    names = [table.site for table in tables]
    for name in names:
        if not is_broker_id(name):
            raise invalid(f"{file}: {SITE_NAME}, not {name!r}")
        if names.count(name) > 1:
            raise invalid(f"{file}: the neighbour {name} has two tables; remove one")
    return tables


def read_neighbours(file: Path, site: str, *, insecure: bool = False) -> tuple[NeighbourAccess, ...]:
    """The neighbours of `site` with their tokens; `insecure` allows addresses without TLS beyond loopback."""
    neighbours = []
    for table in neighbour_tables(file):
        if table.site == site:
            raise invalid(f"{file}: {site} is this site itself; remove its table [[neighbour]]")
        check_address(f"{file}: coordinator of {table.site}", table.coordinator, insecure=insecure)
        ca = None if table.ca is None else _authority(file, table.site, file.parent / table.ca)
        token = _token(file.parent / table.token_file, table.site, site)
        neighbours.append(NeighbourAccess(table.site, table.coordinator, token, ca))
    return tuple(neighbours)


def _authority(file: Path, neighbour: str, path: Path) -> str:
    try:
        authority = path.read_text(encoding="ascii")
        ssl.create_default_context().load_verify_locations(cadata=authority)
    except FileNotFoundError as error:
        raise invalid(f"{file}: ca of {neighbour}: there is no file {path}") from error
    except (OSError, ValueError) as error:
        raise invalid(f"{file}: ca of {neighbour}: {path} is not a readable PEM file: {error}") from error
    return authority


def _token(path: Path, neighbour: str, site: str) -> str:
    how = f"the administrator of {neighbour} makes it: POST /v1/tokens, scopes site:{site} and receive:#"
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise invalid(f"cannot read the token for the site {neighbour}, {path}: {error.strerror}; {how}") from error
    if not token or not token.isascii() or len(token.split()) > 1:
        raise invalid(f"{path} does not contain a token; {how}")
    return token
