"""Tocsin's own columns in stored files. A user's column never starts with `_tocsin`."""

from __future__ import annotations

VERSION = "_tocsin_version"
"""Datasets: the committed batch that brought the record. `NEW` is an interval of versions."""
SEQUENCE = "_tocsin_sequence"
"""Datasets: the order of arrival inside a version."""
NEXT = "_tocsin_next"
"""Records before they are stored: the position in the feed log after the record. Never stored."""

SUBSCRIPTION = "_tocsin_subscription"
"""Results: the number of the backend subscription."""
OFFSET = "_tocsin_offset"
"""Results: the offset of the result, see `model.cursor`."""
BYTES = "_tocsin_bytes"
"""Results: the length of the result as JSON, which the load model counts [BAD §4]."""
