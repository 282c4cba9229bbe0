"""Which URLs and addresses a broker calls: public ones only, unless the operator allows private ones.

A webhook's URL comes from a subscriber. Without these checks a subscriber could make the broker call services that only
the broker's network reaches. The check concerns every address of the host name, and the broker connects to an address
that was checked: a second look-up could return another one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from tocsin.wire.errors import Code, TocsinError

Lookup = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host name and a port; raises OSError or UnicodeError if there are none."""

_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""The only range that IANA has assigned to hosts of the Internet.

Outside it are loopback, link-local, unique-local and site-local (`fec0::/10`) addresses, and those that hold an IPv4
address: `::a.b.c.d`, `::ffff:a.b.c.d`, NAT64 (`64:ff9b::/96`, `64:ff9b:1::/48`).
"""
_NOT_HOSTS = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments; Teredo (2001::/32) holds an IPv4 address
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: holds an IPv4 address
        "3fff::/20",  # documentation
    )
)
_RELAYS = IPv4Network("192.88.99.0/24")
"""Relays of 6to4, which is no longer in use."""
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The upper half of an interface identifier whose lower half is an IPv4 address (RFC 5214 §6.1)."""


def is_public(text: str) -> bool:
    """True if the text is an address of a single host on the public Internet, and holds no other address."""
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast and address not in _RELAYS
    return _is_public_ipv6(address)


def _is_public_ipv6(address: IPv6Address) -> bool:
    holds_ipv4 = (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP
    in_use = address in _GLOBAL_UNICAST and not any(address in network for network in _NOT_HOSTS)
    return in_use and not holds_ipv4 and address.scope_id is None


def check_url(url: str, *, private: bool) -> None:
    """Raise if the URL is unacceptable, without resolving its host name."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise TocsinError(Code.BAD_REQUEST, "url: not an address") from None
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise TocsinError(Code.BAD_REQUEST, "url: webhooks are called over https")
    if not host or parts.username or parts.password or len(url) > 2_048 or not url.isascii() or not url.isprintable():
        raise TocsinError(Code.BAD_REQUEST, "url: expected https://host/path, without a password in it")


def endpoint_of(url: str) -> tuple[str, int]:
    """(host name, port) that a checked URL names."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


async def checked_addresses(host: str, port: int, *, private: bool, lookup: Lookup) -> list[str]:
    """The addresses of a host. Raises if there are none, or if one of them is not public and must be."""
    try:
        addresses = await lookup(host, port)
    except (OSError, UnicodeError):
        raise TocsinError(Code.BAD_REQUEST, f"url: there is no host {host}") from None
    if not addresses or not (private or all(map(is_public, addresses))):
        raise TocsinError(Code.FORBIDDEN, f"url: {host} is not on the public network")
    return addresses


async def look_up(host: str, port: int, threads: Executor | None = None) -> list[str]:
    """Resolve a host name in one of `threads`: a name server of the subscriber's may take its time."""
    loop = asyncio.get_running_loop()
    entries = await loop.run_in_executor(threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [str(entry[4][0]) for entry in entries]
