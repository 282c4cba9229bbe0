"""Claims and reports: what an experiment says in the end, with the seed document's number beside ours.

A claim is computed by comparing a measured value with a bound; nobody writes `holds` down. A claim that fails says
what differs. This module formats and compares: it runs nothing and draws nothing.
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
    """Where the seed document says so: `[ePulsar §5.3, figure 3]`."""
    seed_document: str
    """What it says there, with its unit."""
    ours: float | int | str | None
    holds: bool
    differs: str = ""
    """Empty while the claim holds; otherwise what was measured against what was wanted."""


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    metrics: Mapping[str, Any]
    claims: Sequence[Claim]
    files: Sequence[Path] = ()
    """Figures and tables written so far; the runner adds its own."""
    markdown: str = ""
    """The body: what was measured and how to read it. The runner adds title, claims, figures and settings."""
    notes: Sequence[str] = field(default_factory=tuple)
    """What the reader must know before comparing with the seed document: departures and missing inputs."""


def at_most(id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "") -> Claim:
    """The claim `ours <= bound`. A missing or non-finite value does not hold."""
    return _compared(id, source, seed_document, ours, bound, unit, "at most", lambda value: value <= bound)


def at_least(id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "") -> Claim:
    """The claim `ours >= bound`. A missing or non-finite value does not hold."""
    return _compared(id, source, seed_document, ours, bound, unit, "at least", lambda value: value >= bound)


def below(id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "") -> Claim:
    """The claim `ours < bound`. A missing or non-finite value does not hold."""
    return _compared(id, source, seed_document, ours, bound, unit, "less than", lambda value: value < bound)


def equals(id: str, source: str, seed_document: str, ours: float | int | None, wanted: float | int) -> Claim:
    return _compared(id, source, seed_document, ours, wanted, "", "exactly", lambda value: value == wanted)


def shows(id: str, source: str, seed_document: str, ours: float | int | str | None, condition: bool) -> Claim:
    """A claim that is a shape (falling, independent of, ...): `condition` must be computed from the run's table."""
    return Claim(id, source, seed_document, ours, bool(condition), "" if condition else f"measured {ours}")


def _compared(
    id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str, word: str, test: Any
) -> Claim:
    value = None if ours is None or not math.isfinite(ours) else plain(ours)
    holds = value is not None and bool(test(value))
    suffix = f" {unit}" if unit else ""
    measured = "nothing was measured" if value is None else f"measured {shown(value)}{suffix}"
    return Claim(
        id, source, seed_document, value, holds, "" if holds else f"{measured}, wanted {word} {bound:g}{suffix}"
    )


def plain(value: Any) -> Any:
    """Numpy scalars as Python numbers; what is not finite as None, because JSON has no word for it."""
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
    """The whole Markdown page of one run of an experiment."""
    claims = table(
        ("claim", "where", "the seed document", "ours", "holds"),
        [
            (
                claim.id,
                claim.source,
                claim.seed_document,
                claim.ours,
                "yes" if claim.holds else f"**no**: {claim.differs}",
            )
            for claim in report.claims
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
