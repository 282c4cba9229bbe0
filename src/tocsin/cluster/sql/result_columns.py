"""Tocsin's own columns in stored files. A user's column never starts with `_tocsin`."""

from __future__ import annotations

VERSION = "_tocsin_version"
"""Datasets: the committed batch a record came with. `NEW` is an interval of versions."""
SEQUENCE = "_tocsin_sequence"
"""Datasets: arrival order inside a version."""
NEXT = "_tocsin_next"
"""On the way to a dataset, never stored: where in the feed log reading goes on after this record."""

SUBSCRIPTION = "_tocsin_subscription"
"""Results: the number of the backend subscription."""
OFFSET = "_tocsin_offset"
"""Results: see `model.cursor`."""
BYTES = "_tocsin_bytes"
"""Results: how long the result is as JSON, what the load model counts [BAD §4]."""
