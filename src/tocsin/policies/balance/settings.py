"""The settings of placement and balancing. Light to import: the command line reads them without the policies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

NONE: Final = "none"
MIGRATION_NAMES: Final = ("ldm", "sdm", "affinity", NONE)
SHUFFLE_NAMES: Final = ("gsh", "affinity", NONE)
"""The names of the shuffle policies in `multistage`."""


class PlacementPolicy(StrEnum):
    NEAREST = "nearest"
    """NR: by network coordinates if both have one, else by location, else like round robin."""
    ROUND_ROBIN = "round-robin"
    """RR: the same number of subscribers for each broker."""
    RANDOM = "random"
    """RND: a random broker."""
    LEAST_LOADED = "least-loaded"
    """LL: by load ÷ capacity. The paper warns that a crowd of new subscribers without subscriptions would all land on
    one broker. The caller therefore adds the expected load of subscribers that are placed and not yet reported."""


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Policies and thresholds; thresholds of the paper keep its letters."""

    scheme: Annotated[str, "Dynamic migration: `ldm`, `sdm`, `affinity` or `none`."] = "ldm"
    shuffle: Annotated[str, "Shuffle: `gsh`, `affinity` or `none`."] = "gsh"
    alpha: Annotated[float, "Migrate above this coefficient of variation (cov) of the brokers' loads."] = 0.15
    """[BAD slides, "Parameter values"]."""
    beta_bytes_per_s: Annotated[
        float, "Migrate only above this mean load of the brokers, in bytes/s: an idle network may be uneven."
    ] = 0.0
    gamma: Annotated[float, "Shuffle above this cov of the brokers' loads."] = 0.5
    """[BAD slides]."""
    theta_bytes_per_s: Annotated[float, "Shuffle only above this mean load of the brokers, in bytes/s."] = 0.0
    settle: Annotated[float, "Share of alpha that migration aims for."] = 1.0
    """The paper's value is 1: migration stops at α, so that the smallest change starts it again."""
    hits: Annotated[int, "Rounds in a row that must see the imbalance before any subscriber moves."] = 2
    """The paper's value is 1."""
    rest_s: Annotated[float, "Seconds that a subscriber stays at its broker after a move."] = 60.0
    max_moves: Annotated[int, "Most migrations in one plan; the next round plans the rest. 0 for no limit."] = 1_000
    max_shuffle_moves: Annotated[
        int, "Most moves of a shuffle. If a shuffle needs more, migration is used instead. 0 for no limit."
    ] = 0
    """A shuffle is all or nothing, because half of one does not help."""
    shuffle_rest_s: Annotated[float, "Seconds between two shuffles."] = 300.0
    surges: Annotated[bool, "Answer a surge that brokers foresee at once, without waiting for `hits`."] = True
    overload_bytes_per_s: Annotated[
        float,
        "Load in bytes/s above which a broker is relieved at once, without waiting for `hits`. 0 for none.",
    ] = 0.0
    """Of a broker of mean capacity."""
    max_added_m: Annotated[
        float, "Metres that balancing may add to the distance between a subscriber and its nearest broker. 0: no limit."
    ] = 0.0
    shuffle_gain: Annotated[float, "Share of the cov that a shuffle must remove to be carried out."] = 0.2

    def __post_init__(self) -> None:
        """Raises ValueError, naming the setting, on a value that no policy can follow."""
        if self.scheme not in MIGRATION_NAMES:
            raise ValueError(f"scheme: there is no migration {self.scheme!r}; there are {[*MIGRATION_NAMES]}")
        if self.shuffle not in SHUFFLE_NAMES:
            raise ValueError(f"shuffle: there is no shuffle {self.shuffle!r}; there are {[*SHUFFLE_NAMES]}")
        for name in _NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        if not 0.0 < self.settle <= 1.0:
            raise ValueError(f"settle: {self.settle} is not above 0 and at most 1")
        if self.hits < 1:
            raise ValueError(f"hits: {self.hits} is below 1")


_NOT_NEGATIVE: Final = (
    *("alpha", "gamma", "beta_bytes_per_s", "theta_bytes_per_s", "rest_s", "shuffle_rest_s"),
    *("max_moves", "max_shuffle_moves", "shuffle_gain", "overload_bytes_per_s", "max_added_m"),
)
