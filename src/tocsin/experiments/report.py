"""Claims and reports: the result of an experiment, with the seed document's number beside ours.

A claim compares a measured value with a bound; `holds` is always computed. A failed claim states the difference. This
module compares and formats; it runs nothing and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Claim:
    id: str
    source: str
    """The place in the seed document: `[ePulsar §5.3, figure 3]`."""
    seed_document: str
    """The seed document's statement, with its unit."""
    ours: float | int | str | None
    holds: bool
    differs: str = ""
    """The measured and the expected value; an empty text if the claim holds."""


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    metrics: Mapping[str, Any]
    claims: Sequence[Claim]
    files: Sequence[Path] = ()
    """Figures and tables written so far; the runner adds its own."""
    markdown: str = ""
    """The body of the page; `render` adds title, claims, figures and metrics."""
    notes: Sequence[str] = field(default_factory=tuple)
    """Departures from the seed document and missing inputs, to read before comparing."""


def at_most(id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "") -> Claim:
    """The claim `ours <= bound`. It fails for a missing or non-finite value."""
    return _compared(id, source, seed_document, ours, bound, unit, "at most", lambda value: value <= bound)


def at_least(id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "") -> Claim:
    """The claim `ours >= bound`. It fails for a missing or non-finite value."""
    return _compared(id, source, seed_document, ours, bound, unit, "at least", lambda value: value >= bound)


def below(id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "") -> Claim:
    """The claim `ours < bound`. It fails for a missing or non-finite value."""
    return _compared(id, source, seed_document, ours, bound, unit, "less than", lambda value: value < bound)


def equals(id: str, source: str, seed_document: str, ours: float | int | None, expected: float | int) -> Claim:
    return _compared(id, source, seed_document, ours, expected, "", "exactly", lambda value: value == expected)


def shows(id: str, source: str, seed_document: str, ours: float | int | str | None, condition: bool) -> Claim:
    """A claim about a shape (falling, independent of, …). The caller computes `condition` from the run's table."""
    return Claim(id, source, seed_document, ours, bool(condition), "" if condition else f"measured {ours}")


def _compared(
    id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str, word: str, test: Any
) -> Claim:
    value = None if ours is None or not math.isfinite(ours) else plain(ours)
    holds = value is not None and bool(test(value))
    suffix = f" {unit}" if unit else ""
    measured = "nothing was measured" if value is None else f"measured {shown(value)}{suffix}"
    return Claim(
        id, source, seed_document, value, holds, "" if holds else f"{measured}, expected {word} {bound:g}{suffix}"
    )


def plain(value: Any) -> Any:
    """Numpy scalars as Python numbers; non-finite numbers as None, because JSON has no form for them."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shown(value: Any) -> str:
    value = plain(value)
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; numbers to four significant figures."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(shown(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def render(title: str, command: str, report: ExperimentReport, figures: Sequence[Path]) -> str:
    """The Markdown page of one run of an experiment."""
    claims = table(
        ("claim", "where", "the seed document", "ours", "holds"),
        [
            (c.id, c.source, c.seed_document, c.ours, "yes" if c.holds else f"**no**: {c.differs}")
            for c in report.claims
        ],
    )
    parts = [f"# {title}", f"`{command}`", "## Beside the seed document", claims]
    if report.notes:
        parts += ["## Before comparing", "\n".join(f"- {note}" for note in report.notes)]
    parts += [f"![{path.stem}]({path.name})" for path in figures if path.suffix == ".png"]
    if report.markdown:
        parts.append(report.markdown.strip())
    parts += ["## Metrics", table(("metric", "value"), sorted(report.metrics.items()))]
    return "\n\n".join(parts) + "\n"
