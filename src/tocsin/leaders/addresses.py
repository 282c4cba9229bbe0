"""The addresses of a coordinator or a data cluster and its standbys, and which of them is thought to lead. No I/O."""

from __future__ import annotations

import zlib
from functools import cache
from urllib.parse import urlsplit


class Leaders:
    """All connections of a process to one service share this object: what one of them finds, the others use."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.current = addresses[0]

    @property
    def has_standbys(self) -> bool:
        return len(self.addresses) > 1

    @property
    def others(self) -> list[str]:
        return [address for address in self.addresses if address != self.current]

    def failed(self, address: str) -> None:
        """Try the next address, unless another connection has changed it already."""
        if address == self.current:
            self.current = self.addresses[(self.addresses.index(address) + 1) % len(self.addresses)]

    def is_standby(self, address: str, leader: str) -> None:
        """`address` answered that it does not lead, and that `leader` does, as far as it knows."""
        if address == self.current:
            if leader in self.others:
                self.current = leader
            else:
                self.failed(address)

    def belongs(self, url: str) -> bool:
        return _origin(url) in {_origin(address) for address in self.addresses}


def split_addresses(text: str) -> list[str]:
    """The addresses in a setting: one, or several with commas between them."""
    return [address.strip().rstrip("/") for address in text.split(",") if address.strip()]


def rotated(text: str, name: str) -> str:
    """The same addresses in an order that depends on `name`: equal servers get about the same share of the clients."""
    addresses = split_addresses(text)
    first = zlib.crc32(name.encode()) % len(addresses)
    return ",".join(addresses[first:] + addresses[:first])


def first_address(text: str) -> str:
    """The address to name in URLs of a client that `tocsin.leaders.clients` made: it sends them to the leader."""
    return split_addresses(text)[0]


@cache
def leaders_of(text: str) -> Leaders:
    return Leaders(split_addresses(text))


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
