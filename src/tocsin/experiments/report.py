"""Claims and reports: the result of an experiment, with the seed document's number beside ours.

A claim compares a measured value with a bound; `holds` is always computed. A failed claim states the difference. A
claim without a measured value is not judged and states the reason. Where the seed document gives a number, the claim
states whether ours is at least as good and whether ours is within a factor of 1.5. This module compares and formats; it
runs nothing and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Required, TypedDict, Unpack

FACTOR: Final = 1.5
"""A value reproduces the seed document's number if it is within this factor of it, on either side."""
UNMEASURED: Final = "nothing was measured"
NO_CHOICE: Final = "none"
"""`Claim.decided_by` if no choice of ours decides the value or the bound."""


@dataclass(frozen=True, slots=True)
class Claim:
    id: str
    source: str
    """The place in the seed document: `[ePulsar §5.3, figure 3]`."""
    seed_document: str
    """The seed document's statement, with its unit."""
    ours: float | int | str | None
    holds: bool | None
    """None: the runs do not allow a judgement. Where the seed document gives a number, this is `at_least_as_good`, or
    `within_factor` if the number has no better side."""
    differs: str = ""
    """If the claim fails: the measured and the expected value. If it was not judged: the reason. Otherwise empty."""
    seed_value: float | None = None
    """The seed document's number, if it states one."""
    at_least_as_good: bool | None = None
    """Whether ours is on the better side of `seed_value` or equal; None without a number, a better side or a value."""
    within_factor: bool | None = None
    """Whether ours is within `FACTOR` of `seed_value`; None without a number or a value."""
    decided_by: str = ""
    """Our choices, not stated by the seed document, that decide the measured value or the bound; `NO_CHOICE` if none
    do. Never empty."""
    interval_95: tuple[float, float] | None = None
    """The 95 % confidence interval of `ours` over runs, where the experiment computes one."""
    effect_size: float | None = None
    """For a paired test: the matched-pairs rank-biserial correlation, from -1 to 1; 1 if all pairs differ as stated."""

    def __post_init__(self) -> None:
        if not self.decided_by:
            raise ValueError(f"the claim {self.id!r} must name the choices that decide it, or NO_CHOICE")


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
    inputs: Sequence[Claim] = ()
    """Our inputs beside the seed document's numbers. We chose them, so they are no evidence and count as no claim."""


class Details(TypedDict, total=False):
    """What every comparison below accepts besides its numbers."""

    decided_by: Required[str]
    missing: str
    """The reason why a claim without a finite value is not judged."""


def at_most(
    id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "", **more: Unpack[Details]
) -> Claim:
    """The claim `ours <= bound`. A missing or non-finite value is not judged."""
    compared = _compared(ours, f"at most {bound:g}", unit, more, lambda value: value <= bound)
    return Claim(id, source, seed_document, *compared, decided_by=more["decided_by"])


def at_least(
    id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "", **more: Unpack[Details]
) -> Claim:
    """The claim `ours >= bound`. A missing or non-finite value is not judged."""
    compared = _compared(ours, f"at least {bound:g}", unit, more, lambda value: value >= bound)
    return Claim(id, source, seed_document, *compared, decided_by=more["decided_by"])


def below(
    id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "", **more: Unpack[Details]
) -> Claim:
    """The claim `ours < bound`. A missing or non-finite value is not judged."""
    compared = _compared(ours, f"less than {bound:g}", unit, more, lambda value: value < bound)
    return Claim(id, source, seed_document, *compared, decided_by=more["decided_by"])


def above(
    id: str, source: str, seed_document: str, ours: float | None, bound: float, unit: str = "", **more: Unpack[Details]
) -> Claim:
    """The claim `ours > bound`. A missing or non-finite value is not judged."""
    compared = _compared(ours, f"more than {bound:g}", unit, more, lambda value: value > bound)
    return Claim(id, source, seed_document, *compared, decided_by=more["decided_by"])


def equals(
    id: str, source: str, seed_document: str, ours: float | int | None, expected: float | int, **more: Unpack[Details]
) -> Claim:
    """The claim `ours == expected`. A missing or non-finite value is not judged."""
    compared = _compared(ours, f"exactly {expected:g}", "", more, lambda value: value == expected)
    return Claim(id, source, seed_document, *compared, decided_by=more["decided_by"])


def shows(
    id: str,
    source: str,
    seed_document: str,
    ours: float | int | str | None,
    condition: bool | None,
    **more: Unpack[Details],
) -> Claim:
    """A claim about a shape (falling, independent of, …). The caller computes `condition` from the run's table; None:
    the claim is not judged."""
    decided_by = more["decided_by"]
    if condition is None:
        return Claim(id, source, seed_document, None, None, more.get("missing", UNMEASURED), decided_by=decided_by)
    differs = "" if condition else f"measured {ours}"
    return Claim(id, source, seed_document, ours, bool(condition), differs, decided_by=decided_by)


def no_more_than_seed(
    id: str,
    source: str,
    seed_document: str,
    ours: float | None,
    seed_value: float,
    unit: str = "",
    **more: Unpack[Details],
) -> Claim:
    """The claim that ours is at least as good as the seed document's number, where less is better."""
    compared = _compared(ours, f"at most {seed_value:g}", unit, more, lambda value: value <= seed_value)
    return _beside_seed(id, source, seed_document, compared, seed_value, more)


def no_less_than_seed(
    id: str,
    source: str,
    seed_document: str,
    ours: float | None,
    seed_value: float,
    unit: str = "",
    **more: Unpack[Details],
) -> Claim:
    """The claim that ours is at least as good as the seed document's number, where more is better."""
    compared = _compared(ours, f"at least {seed_value:g}", unit, more, lambda value: value >= seed_value)
    return _beside_seed(id, source, seed_document, compared, seed_value, more)


def reproduces(
    id: str,
    source: str,
    seed_document: str,
    ours: float | None,
    seed_value: float,
    unit: str = "",
    **more: Unpack[Details],
) -> Claim:
    """The claim that ours is within the factor of the seed document's number, which has no better side."""
    expected = f"{seed_value / FACTOR:.4g}–{seed_value * FACTOR:.4g}"
    compared = _compared(ours, expected, unit, more, lambda value: _is_within_factor(value, seed_value))
    decided_by = more["decided_by"]
    return Claim(id, source, seed_document, *compared, seed_value, within_factor=compared[1], decided_by=decided_by)


def with_evidence(
    claim: Claim, interval_95: tuple[float, float] | None = None, effect_size: float | None = None
) -> Claim:
    """The claim with a confidence interval of its value, or with an effect size. A claim without a value has none."""
    if claim.ours is None:
        return claim
    return replace(claim, interval_95=interval_95, effect_size=effect_size)


_Compared = tuple[float | None, bool | None, str]
"""(the value, whether the claim holds, what differs)."""


def _compared(
    ours: float | None, expected: str, unit: str, more: Details, condition: Callable[[float], bool]
) -> _Compared:
    if ours is None or not math.isfinite(ours):
        return None, None, more.get("missing", UNMEASURED)
    value, suffix = plain(ours), f" {unit}" if unit else ""
    holds = bool(condition(value))
    return value, holds, "" if holds else f"measured {shown(value)}{suffix}, expected {expected}{suffix}"


def _beside_seed(
    id: str, source: str, seed_document: str, compared: _Compared, seed_value: float, more: Details
) -> Claim:
    value, holds, _ = compared
    within = None if value is None else _is_within_factor(value, seed_value)
    return Claim(id, source, seed_document, *compared, seed_value, holds, within, more["decided_by"])


def _is_within_factor(value: float, seed_value: float) -> bool:
    return seed_value / FACTOR <= value <= seed_value * FACTOR


def as_json(claim: Claim) -> dict[str, Any]:
    """All fields of a claim, as JSON can hold them."""
    fields: dict[str, Any] = plain(asdict(claim))
    return fields


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


_COLUMNS: Final = (
    *("claim", "where", "the seed document", "its number", "ours"),
    *("at least as good", f"within a factor {FACTOR:g}", "holds", "decided by our choice of"),
)


_EVIDENCE: Final = ("95 % interval", "effect size")


def verdict(claim: Claim) -> str:
    """`holds` in words, with the difference or the reason."""
    if claim.holds is None:
        return f"*not judged*: {claim.differs}"
    return "yes" if claim.holds else f"**no**: {claim.differs}"


def claim_table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table; a dash where the seed document gives no number. Confidence intervals and effect
    sizes have columns if any claim has one."""
    rows: list[tuple[Any, ...]] = [
        (
            *(claim.id, claim.source, claim.seed_document, claim.seed_value, claim.ours),
            *(claim.at_least_as_good, claim.within_factor, verdict(claim), claim.decided_by),
        )
        for claim in claims
    ]
    columns: tuple[str, ...] = _COLUMNS
    if any(claim.interval_95 or claim.effect_size is not None for claim in claims):
        evidence = [(_interval(claim.interval_95), claim.effect_size) for claim in claims]
        columns = (*_COLUMNS[:5], *_EVIDENCE, *_COLUMNS[5:])
        rows = [(*row[:5], *more, *row[5:]) for row, more in zip(rows, evidence, strict=True)]
    return table(columns, rows)


def _interval(interval_95: tuple[float, float] | None) -> str | None:
    return None if interval_95 is None else f"{shown(interval_95[0])} to {shown(interval_95[1])}"


def render(title: str, command: str, report: ExperimentReport, figures: Sequence[Path]) -> str:
    """The Markdown page of one run of an experiment."""
    parts = [f"# {title}", f"`{command}`", "## Beside the seed document", claim_table(report.claims)]
    if report.inputs:
        parts += ["## Our inputs, which the runs cannot change", claim_table(report.inputs)]
    if report.notes:
        parts += ["## Before comparing", "\n".join(f"- {note}" for note in report.notes)]
    parts += [f"![{path.stem}]({path.name})" for path in figures if path.suffix == ".png"]
    if report.markdown:
        parts.append(report.markdown.strip())
    parts += ["## Metrics", table(("metric", "value"), sorted(report.metrics.items()))]
    return "\n\n".join(parts) + "\n"
