"""`bad-testbed`: figures 5–12 of [BAD §6.1]: three placements × no balancing, LDM, SDM, both with GSH, and affinity.

Simulated: the paper's prototype had 5 brokers and 400 subscribers on real machines. `bad_testbed_live` reports on rows
of the same form that were measured on the live system. `claims`, `inputs`, `body` and `draw_figures` accept any part
of the placements and schemes; a claim about runs that were not made is not judged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from matplotlib.figure import Figure

from tocsin.experiments import figures
from tocsin.experiments.balance_runs import (
    KB,
    comparison,
    draw_loads,
    paper_settings,
    rows_of,
    select,
    share_y,
    simulate_world,
    subscription_counts,
)
from tocsin.experiments.report import (
    Claim,
    ExperimentReport,
    at_least,
    at_most,
    below,
    reproduces,
    shows,
    table,
)
from tocsin.experiments.runner import Row

SCENARIO: Final = "paper-testbed"
PLACEMENTS: Final = {"RND": "random", "RR": "round-robin", "NR": "nearest"}
SCHEMES: Final[dict[str, dict[str, Any]]] = {
    "none": {"scheme": "none", "shuffle": "none"},
    "LDM": {"scheme": "ldm", "shuffle": "none"},
    "SDM": {"scheme": "sdm", "shuffle": "none"},
    "LDM + GSH": {"scheme": "ldm", "shuffle": "gsh"},
    "SDM + GSH": {"scheme": "sdm", "shuffle": "gsh"},
    "affinity": {"scheme": "affinity", "shuffle": "affinity"},
}
MIGRATIONS: Final = ("LDM", "SDM")
SHUFFLED: Final = ("LDM + GSH", "SDM + GSH")
PAPER_SCHEMES: Final = (*MIGRATIONS, *SHUFFLED)
BUSY_BYTES_PER_S: Final = 60 * KB
"""β and θ: a little over half of the final mean load, so that nothing moves before most subscriptions are made. The
paper gives no value for the testbed."""
CLOSE: Final = 0.15
"""Ours: SDM is "similar" to LDM if cov and maximum differ by at most 15 %."""
FEWER_AT_MOST: Final = 1 / 3
"""Ours: numbers of migrations are "similar" if the smaller is at most a third below the larger: a factor of 1.5."""
MUCH_MORE: Final = 5.0
"""Ours: the multiple that counts as "much higher"."""
NOT_MUCH: Final = 0.9
"""Ours: a shuffle "does not show much benefit" if cov and maximum stay above 90 % of migration's."""
SHOWN_SEEDS: Final = 5
"""Number of seeds whose loads per broker are kept; figures show the one of them with most LDM migrations."""


@dataclass(frozen=True)
class BadTestbed:
    name: str = "bad-testbed"
    title: str = "Placements and migration on 5 brokers and 400 subscribers [BAD figures 5–12]"
    default_runs: int = 20

    def settings(self, runs: int, **options: str) -> Sequence[Mapping[str, Any]]:
        if options:
            raise ValueError(f"{self.name} has no options; got {sorted(options)}")
        return [
            {"seed": seed, "placement": placement, "scheme": scheme}
            for placement in PLACEMENTS
            for scheme in SCHEMES
            for seed in range(runs)
        ]

    def run(self, setting: Mapping[str, Any]) -> list[Row]:
        busy = {"beta_bytes_per_s": BUSY_BYTES_PER_S, "theta_bytes_per_s": BUSY_BYTES_PER_S}
        settings = paper_settings(**busy, **SCHEMES[setting["scheme"]])
        log = simulate_world(SCENARIO, setting["seed"], PLACEMENTS[setting["placement"]], settings)
        rows = rows_of(log, setting, brokers=setting["seed"] < SHOWN_SEEDS)
        rows[0] |= subscription_counts(SCENARIO, setting["seed"])
        return rows

    def report(self, table_: pa.Table, out: Path) -> ExperimentReport:
        return _report(table_, out, _NOTES)


def _report(table_: pa.Table, out: Path, notes: tuple[str, ...]) -> ExperimentReport:
    rows = table_.to_pandas()
    means = means_of(rows)
    return ExperimentReport(metrics_of(means), claims(means), draw_figures(out, rows), body(means), notes, inputs(rows))


def means_of(rows: Any) -> Any:
    """The means over seeds, one row per placement and scheme that was run."""
    columns = ["cov", "maximum", "migrations", "migrations_later", "shuffles"]
    return select(rows, kind="run").groupby(["placement", "scheme"])[columns].mean()


def metrics_of(means: Any) -> dict[str, float]:
    """The metrics of every placement and scheme that was run."""
    return {
        f"{placement}.{scheme}.{column}": float(means.loc[(placement, scheme), column])
        for placement, scheme in means.index
        for column in ("cov", "maximum", "migrations", "migrations_later")
    }


def inputs(rows: Any) -> list[Claim]:
    """Our inputs beside the paper's. Without the columns `frontend` and `backend` they are not judged."""
    runs, source = select(rows, kind="run"), "[BAD §6.1.2]"
    counts = {name: float(runs[name].mean()) if name in runs else None for name in ("frontend", "backend")}
    drawn = "how (1, 5) channels and (1, 3) subscriptions per channel are drawn"
    kept = "88 BE subscriptions in each of 7 channels"
    return [
        reproduces("frontend-subscriptions", source, "around 2,200", counts["frontend"], 2_200.0, decided_by=drawn),
        reproduces("backend-subscriptions", source, "around 600", counts["backend"], 600.0, decided_by=kept),
    ]


def claims(means: Any, offered: Collection[str] = tuple(SCHEMES)) -> list[Claim]:
    """The claims about the offered schemes. A claim about placements and schemes that were not run, or without a
    migration, is not judged. No claim is made about a scheme that is not offered: no run of it could judge it."""
    found = [claim for placement in PLACEMENTS for scheme in MIGRATIONS for claim in _gains(means, placement, scheme)]
    found += [claim for placement in PLACEMENTS for claim in _similar(means, placement)]
    for scheme in MIGRATIONS:
        found += [_nearest_needs_more(means, scheme, other) for other in ("RR", "RND")]
        if f"{scheme} + GSH" in offered:
            found += [_early_shuffle(means, scheme), *_little_benefit(means, scheme)]
    found += _shuffles(means)
    return found + affinity_claims(means, PAPER_SCHEMES) if set(PAPER_SCHEMES) <= set(offered) else found


def _gains(means: Any, placement: str, scheme: str) -> list[Claim]:
    missing = _not_run(means, (placement, "none"), (placement, scheme)) or _not_moved(means, (placement, scheme))
    figure = {"RND": "[BAD §6.1.3, figure 6]", "RR": "[BAD slides, round robin]", "NR": "[BAD §6.1.3, figure 10]"}
    prefix, unit = f"{placement}-{scheme}".lower(), f"times that of {placement} alone"
    named = {"cov": "cov", "maximum": "the maximum load"}
    ratios = {column: _ratio(means, column, (placement, scheme), (placement, "none"), missing) for column in named}
    return [
        below(f"{prefix}-{column}", figure[placement], f"{scheme} reduces {text}", ratios[column], 1.0, unit,
              decided_by=_SKEW if placement == "NR" else _SPREAD, missing=missing)
        for column, text in named.items()
    ]  # fmt: skip


def _similar(means: Any, placement: str) -> list[Claim]:
    ldm, sdm = (placement, "LDM"), (placement, "SDM")
    missing = _not_run(means, ldm, sdm) or _not_moved(means, ldm, sdm)
    prefix, alike, unit = placement.lower(), "LDM and SDM perform alike", "of LDM's apart"
    source = "[BAD §6.1.3, figures 6, 10]"
    found = []
    for column in ("cov", "maximum"):
        ratio = _ratio(means, column, sdm, ldm, missing)
        apart, stops = None if ratio is None else abs(ratio - 1.0), "; both stop at α" if column == "cov" else ""
        decided_by = f"{CLOSE:.0%} counts as alike{stops}"
        found.append(
            at_most(f"{prefix}-sdm-close-to-ldm-{column}", source, alike, apart, CLOSE, unit,
                    decided_by=decided_by, missing=missing)
        )  # fmt: skip
    moves = [] if missing else [float(means.loc[label, "migrations"]) for label in (ldm, sdm)]
    fewer = None if missing else 1.0 - min(moves) / max(moves)
    statement, unit = "LDM and SDM require a similar number of migrations", "fewer in the one with fewer"
    source = "[BAD slides, round robin]" if placement == "RR" else "[BAD §6.1.3, figure 12]"
    decided_by = "a third counts as similar"
    similar = at_most(f"{prefix}-similar-migrations", source, statement, fewer, FEWER_AT_MOST, unit,
                      decided_by=decided_by, missing=missing)  # fmt: skip
    return [*found, similar]


def _nearest_needs_more(means: Any, scheme: str, other: str) -> Claim:
    missing = _not_run(means, ("NR", scheme), (other, scheme)) or _not_moved(means, ("NR", scheme))
    # A placement that needs no migration counts as one: "five times none" would hold for any number.
    moves = {} if missing else {p: float(means.loc[(p, scheme), "migrations"]) for p in ("NR", other)}
    ratio = None if missing else moves["NR"] / max(1.0, moves[other])
    id, statement = f"nr-needs-more-{scheme.lower()}-than-{other.lower()}", f"NR: much more than {other}"
    decided_by = f"{_SKEW}; {MUCH_MORE:g} times counts as much more"
    return at_least(id, "[BAD §6.1.3, figure 12]", statement, ratio, MUCH_MORE, f"times the migrations of {other}",
                    decided_by=decided_by, missing=missing)  # fmt: skip


def _early_shuffle(means: Any, scheme: str) -> Claim:
    alone, shuffled = ("NR", scheme), ("NR", f"{scheme} + GSH")
    missing = _not_run(means, alone, shuffled) or _not_moved(means, alone, shuffled)
    later = [] if missing else [float(means.loc[label, "migrations_later"]) for label in (shuffled, alone)]
    difference = None if missing else later[0] - later[1]
    source, statement = "[BAD §6.1.3, figures 8, 9, 11]", "an early GSH lowers later migrations"
    unit = f"more after the first plan than with {scheme} alone"
    decided_by = "the shuffle's own moves are not counted, as in the paper"
    return below(f"early-shuffle-{scheme.lower()}", source, statement, difference, 0.0, unit,
                 decided_by=decided_by, missing=missing)  # fmt: skip


def _little_benefit(means: Any, scheme: str) -> list[Claim]:
    alone, shuffled = ("NR", scheme), ("NR", f"{scheme} + GSH")
    missing = _not_run(means, alone, shuffled) or _not_moved(means, alone, shuffled)
    statement, decided_by = f"GSH: not much benefit over {scheme} itself", f"{1 - NOT_MUCH:.0%} counts as not much"
    return [
        at_least(f"gsh-little-over-{scheme.lower()}-{column}", "[BAD §6.1.3]", statement,
                 _ratio(means, column, shuffled, alone, missing), NOT_MUCH, f"times {scheme}'s {column}",
                 decided_by=decided_by, missing=missing)
        for column in ("cov", "maximum")
    ]  # fmt: skip


def _shuffles(means: Any) -> list[Claim]:
    statements = {"NR": "NR calls out the shuffle", "RND": "RND does not call out the shuffle"}
    found = []
    for placement, statement in statements.items():
        missing = _not_run(means, (placement, "LDM + GSH"))
        made = None if missing else float(means.loc[(placement, "LDM + GSH"), "shuffles"])
        holds = None if made is None else made >= 1.0 if placement == "NR" else made == 0.0
        id, ours = f"shuffle-under-{placement.lower()}", None if made is None else f"{made:.2f} shuffles a run"
        decided_by = _SKEW if placement == "NR" else _SPREAD
        found.append(shows(id, "[BAD §6.1.3]", statement, ours, holds, decided_by=decided_by, missing=missing))
    return found


def affinity_claims(means: Any, others: Sequence[str], prefix: str = "nr-affinity") -> list[Claim]:
    """Claims of our own: affinity beside the best of these schemes of the paper, at the same α and γ."""
    ours, paper = ("NR", "affinity"), [("NR", scheme) for scheme in others]
    missing = _not_run(means, ours, *paper) or ("" if paper else "not run: a scheme of the paper under NR")
    best = None if missing else min(paper, key=lambda label: float(means.loc[label, "maximum"]))
    missing = missing if best is None else _idle(means, ours, best)
    ratios = {
        column: None if best is None or missing else _ratio(means, column, ours, best, missing)
        for column in ("maximum", "migrations")
    }
    of = "of the paper's scheme with the lowest maximum" if best is None else f"of {best[1]}"
    source, unknown = "beyond the paper, its future work [BAD §7]", "not measured there"
    return [
        at_most(f"{prefix}-maximum", source, unknown, ratios["maximum"], 1.0, f"times the maximum {of}",
                decided_by=f"{_BEST}; {_SKEW}", missing=missing),
        below(f"{prefix}-migrations", source, unknown, ratios["migrations"], 1.0, f"times the migrations {of}",
              decided_by=f"{_BEST}; {_SKEW}", missing=missing),
    ]  # fmt: skip


def _ratio(means: Any, column: str, label: tuple[str, str], other: tuple[str, str], missing: str) -> float | None:
    return None if missing else float(means.loc[label, column] / means.loc[other, column])


def _not_run(means: Any, *labels: tuple[str, str]) -> str:
    """The reason why runs cannot be compared: those that were not made. Empty if all were."""
    absent = [f"{scheme} under {placement}" for placement, scheme in labels if (placement, scheme) not in means.index]
    return f"not run: {', '.join(absent)}" if absent else ""


def _not_moved(means: Any, *labels: tuple[str, str]) -> str:
    """The reason why runs cannot be compared: none of them moved a subscriber. Empty if one did."""
    if any(means.loc[label, "migrations"] > 0 for label in labels):
        return ""
    return f"no subscriber moved under {labels[0][0]}: placement alone stayed below α"


def _idle(means: Any, *labels: tuple[str, str]) -> str:
    """The reason why moves and their effect cannot be compared: one of these runs moved no subscriber."""
    idle = [
        f"{scheme} under {placement}"
        for placement, scheme in labels
        if not means.loc[(placement, scheme), "migrations"] > 0
    ]
    return f"no subscriber moved with {', '.join(idle)}" if idle else ""


def draw_figures(out: Path, rows: Any) -> list[Path]:
    """Write the figures of the placements and schemes that were run; return their paths."""
    kept, samples = select(rows, kind="broker"), select(rows, kind="sample")
    runs = select(rows, kind="run")
    files: list[Path] = []

    def present(placement: str, schemes: Sequence[str]) -> list[str]:
        return [scheme for scheme in schemes if len(select(runs, placement=placement, scheme=scheme))]

    def loads(number: int, placement: str, candidates: Sequence[str]) -> None:
        schemes = present(placement, candidates)
        if not schemes:
            return
        shown = runs[(runs.placement == placement) & runs.scheme.isin(schemes) & (runs.seed < SHOWN_SEEDS)]
        ldm = select(shown, scheme="LDM") if (shown.scheme == "LDM").any() else shown
        first = select(kept, seed=ldm.seed[ldm.migrations.idxmax()])

        def build(figure: Figure) -> None:
            panels = figure.subplots(1, len(schemes), squeeze=False)[0]
            for count, (axes, scheme) in enumerate(zip(panels, schemes, strict=True), start=1):
                rows = select(first, placement=placement, scheme=scheme)
                draw_loads(axes, rows, f"({count}) {placement} + {_shown(scheme)}", KB, "kB/s")
            share_y(panels)

        files.extend(figures.draw(out, f"bad-figure-{number:02}", build, width_in=2.7 * len(schemes), height_in=2.6))

    def compared(number: int, placement: str, candidates: Sequence[str]) -> None:
        schemes = present(placement, candidates)
        if len(schemes) < 2:
            return
        series = [(_shown(scheme), select(samples, placement=placement, scheme=scheme)) for scheme in schemes]
        name = f"bad-figure-{number:02}"
        build = partial(comparison, series=series, unit=KB, unit_name="kB/s")
        files.extend(figures.draw(out, name, build, width_in=8.0, height_in=3.0))

    alone, shuffled = ("none", *MIGRATIONS), (*SHUFFLED, "affinity")
    loads(5, "RND", alone)
    compared(6, "RND", alone)
    loads(7, "RR", alone)
    loads(8, "NR", alone)
    loads(9, "NR", shuffled)
    compared(10, "NR", alone)
    compared(11, "NR", (*alone, *shuffled))
    if runs.scheme.isin(MIGRATIONS).any():
        files += figures.draw(out, "bad-figure-12", lambda figure: _draw_12(figure, runs), width_in=5.4, height_in=2.8)
    return files


def _shown(scheme: str) -> str:
    return "no balancing" if scheme == "none" else scheme


def _draw_12(figure: Figure, runs: Any) -> None:
    schemes = [scheme for scheme in MIGRATIONS if len(select(runs, scheme=scheme))]
    panels = figure.subplots(1, len(schemes), sharey=True, squeeze=False)[0]
    for number, (axes, scheme) in enumerate(zip(panels, schemes, strict=True), start=1):
        grouped = select(runs, scheme=scheme).groupby("placement").migrations
        placements = [placement for placement in PLACEMENTS if placement in grouped.groups]
        low, mean, high = (getattr(grouped, name)().loc[placements] for name in ("min", "mean", "max"))
        axes.bar(placements, mean, yerr=[mean - low, high - mean], color=figures.SKY, ecolor="#444444", width=0.6)
        for place, key in enumerate(placements):
            style: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": 7.5}
            axes.annotate(f"{mean[key]:.1f}", (place, high[key]), **style)
        axes.set(title=f"({number}) {scheme}", xlabel="placement", ylabel="migrations" if number == 1 else "")
    panels[0].set_ylim(0, 1.15 * max(1.0, float(runs[runs.scheme.isin(schemes)].migrations.max())))


def body(means: Any) -> str:
    columns = ("placement", "scheme", "cov", "maximum load (kB/s)", "migrations", "after the first plan")
    rows = [
        (
            *label,
            float(mean["cov"]),
            float(mean["maximum"]) / KB,
            float(mean["migrations"]),
            float(mean.migrations_later),
        )
        for label, mean in means.iterrows()
    ]
    return "## Means over seeds, from minute 10 on\n\n" + table(columns, rows)


_NOTES = (
    f"Simulated. Loads per broker are of one seed: of the first {SHOWN_SEEDS}, the one with most LDM migrations. "
    "Everything else is the mean over all seeds.",
    "Rates are ours: the paper gives reports per run, not results per subscription. Their spread is chosen so that "
    "RND and RR are uneven at times, as in the paper's figures 5 and 7.",
    "Where placement alone stays below α = 0.15, migration does nothing and the scheme equals no balancing: its claims "
    "are not judged.",
)
_SPREAD: Final = "the spread of the rates"
_SKEW: Final = "the skew (`crowd`) of the scenario"
_BEST: Final = "compared with the scheme that has the lowest maximum"

EXPERIMENT = BadTestbed()
