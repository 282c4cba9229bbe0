"""What happens to a coordinator. Requests carry a number (`ask`) and get exactly one `Answer` with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.snapshot import Place
from tocsin.policies.balance.placement import PlacementPolicy
from tocsin.wire.link import FromBroker

# -- time and links ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passes: a few times a second, or whenever the driver likes."""

    may_plan: bool = True
    """False while the driver could not bear a plan: compiling the policies for the first time takes seconds."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A broker said something over a link; links are numbered by the driver, never twice the same."""

    broker: BrokerId
    link: int
    message: FromBroker


@dataclass(frozen=True, slots=True)
class LinkClosed:
    broker: BrokerId
    link: int


@dataclass(frozen=True, slots=True)
class BrokerReleased:
    """Nothing is held at the data cluster in this broker's name any more (or nobody looks after that)."""

    broker: BrokerId


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UserRegistered:
    """registeruser [BAD §6.1.1]. Answer: True if it is new."""

    ask: int
    user: SubscriberId
    place: Place | None = None
    coordinate: Coordinate | None = None


@dataclass(frozen=True, slots=True)
class BrokerRequested:
    """requestbroker [BAD §3.1]. Answer: `Placed`."""

    ask: int
    user: SubscriberId
    place: Place | None = None
    coordinate: Coordinate | None = None
    avoid: frozenset[BrokerId] = frozenset()
    """Those it could not reach."""


@dataclass(frozen=True, slots=True)
class Placed:
    broker: BrokerId
    address: str


@dataclass(frozen=True, slots=True)
class UserDeleted:
    """Answer: True."""

    ask: int
    user: SubscriberId


@dataclass(frozen=True, slots=True)
class DrainOrdered:
    """Answer: how many subscribers it has left."""

    ask: int
    broker: BrokerId
    on: bool


@dataclass(frozen=True, slots=True)
class BrokerDismissed:
    """Forget a dead or drained broker. Answer: True; it disappears once the data cluster has let go of it too."""

    ask: int
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class MoveWanted:
    subscriber: SubscriberId
    target: BrokerId
    reason: str = "asked for"


@dataclass(frozen=True, slots=True)
class PlanProposed:
    """By the name of a policy, or as moves. Answer: `arbiter.Decision`."""

    ask: int
    policy: str | None = None
    moves: tuple[MoveWanted, ...] | None = None
    dry_run: bool = True
    generation: int | None = None
    """Of the snapshot the moves were thought up on; None for the present one."""


@dataclass(frozen=True, slots=True)
class PlacementChosen:
    """Answer: True."""

    ask: int
    placement: PlacementPolicy | None = None
    replacement: PlacementPolicy | None = None


@dataclass(frozen=True, slots=True)
class BalanceChosen:
    """What is not named stays as it is. Answer: True."""

    ask: int
    on: bool | None = None
    period_s: float | None = None
    changes: Mapping[str, object] = field(default_factory=dict)
    """Of `BalanceSettings`."""


Event = (
    Ticked | Heard | LinkClosed | BrokerReleased | UserRegistered | BrokerRequested | UserDeleted | DrainOrdered
    | BrokerDismissed | PlanProposed | PlacementChosen | BalanceChosen
)  # fmt: skip
