"""Flows: all messages of one site on one topic, as neighbouring sites receive them [ePEER §4.3.2].

A site that imports a flow publishes its messages to its own topic, under a publisher that stands for the flow and with
the numbers that the source gave them. So homes and receivers remove repeats as ever, by publisher and number, whichever
route a message came by. The number of a message is its position at the source: it grows through all homes and epochs.

A mark takes a place in the topic's sequence where messages of a flow may be missing. It is stored and handed over like
a message; receivers get a gap instead.
"""

from __future__ import annotations

import hashlib

_FLOW = 1 << 53
"""Publishers of clients are below (`model.topic.publisher_id`)."""
_MARK = 1 << 54
_SEQUENCE_BITS = 40
LARGEST_NUMBER = (1 << 63) - 1
"""Logs and frames hold numbers of 64 bits. 2**23 epochs: a new store begins with the minutes since 2026."""


def flow_publisher(site: str) -> int:
    """The publisher that stands for a site's messages, the same at every site."""
    return _FLOW | int.from_bytes(hashlib.blake2b(site.encode(), digest_size=8).digest(), "big") >> 11


def is_flow(publisher: int) -> bool:
    """True for a flow or a mark; False for a client of this site."""
    return publisher >= _FLOW


def is_mark(publisher: int) -> bool:
    return publisher >= _MARK


def mark_of(flow: int) -> int:
    """The publisher of a flow's marks."""
    return flow | _MARK


def flow_of(publisher: int) -> int:
    """The flow of a message or of a mark."""
    return publisher & ~_MARK


def flow_number(epoch: int, sequence: int) -> int:
    """The number of a message in the flow of its own site."""
    return epoch << _SEQUENCE_BITS | sequence


def flow_position(number: int) -> tuple[int, int]:
    """The position (epoch, sequence) of a message at its source."""
    return number >> _SEQUENCE_BITS, number & ((1 << _SEQUENCE_BITS) - 1)
