"""Replacing parts of a text by their places. Edits may not overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    start: int
    end: int
    """Just past the last character replaced; equal to `start` for an insertion."""
    text: str


def apply_edits(text: str, edits: Iterable[Edit], start: int = 0, end: int | None = None) -> str:
    """`text[start:end]` with those edits made that lie inside it."""
    stop = len(text) if end is None else end
    parts, done = [], start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < start or edit.end > stop:
            continue
        if edit.start < done:
            raise ValueError(f"edits overlap at {edit.start}: {edit.text!r}")
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*parts, text[done:stop]])
