"""What happens to a subscriber's session (past tense) and what it wants done (imperative). Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId
from tocsin.wire.session import FromSubscriber, Gap, Held, Recovered, Result, ToSubscriber


@dataclass(frozen=True, slots=True)
class Place:
    """A broker to go to, and what lets this subscriber in."""

    broker: BrokerId
    address: str
    token: str


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class Located:
    place: Place


@dataclass(frozen=True, slots=True)
class NotLocated:
    code: str
    message: str
    retry: bool
    """Whether asking again may help: False for a token that is not good."""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    connection: int


@dataclass(frozen=True, slots=True)
class Received:
    connection: int
    message: ToSubscriber


@dataclass(frozen=True, slots=True)
class Lost:
    connection: int
    reason: str
    """A word of `wire.session.CLOSE_CODES` if the broker gave one, else what the network said."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The application wants a subscription. `ticket` comes back with the answer."""

    ticket: int
    channel: ChannelName
    parameters: dict[str, Any]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Unwanted:
    ticket: int
    subscription: SubscriptionId


@dataclass(frozen=True, slots=True)
class Handled:
    subscription: SubscriptionId
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Ticked:
    pass


@dataclass(frozen=True, slots=True)
class Stopped:
    pass


Event = (
    Started | Located | NotLocated | Opened | Received | Lost | Wanted | Unwanted | Handled | Ticked | Stopped
)  # fmt: skip


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Locate:
    """Ask the coordinator which broker to go to; answer with `Located` or `NotLocated`."""

    avoid: BrokerId | None


@dataclass(frozen=True, slots=True)
class Open:
    connection: int
    place: Place


@dataclass(frozen=True, slots=True)
class Send:
    connection: int
    message: FromSubscriber


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing from this connection is wanted any more, not even that it ended."""

    connection: int


@dataclass(frozen=True, slots=True)
class Deliver:
    message: Result | Gap | Recovered


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to `Wanted`."""

    ticket: int
    held: Held


@dataclass(frozen=True, slots=True)
class Confirm:
    """The answer to `Unwanted`."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Either was refused for good."""

    ticket: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class End:
    """A subscription that was held cannot be held any longer (its channel is gone)."""

    subscription: SubscriptionId
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No session any more and no use in trying: tell the application."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Stopped as asked; nothing is open."""


Effect = Locate | Open | Send | Close | Deliver | Grant | Confirm | Refuse | End | GiveUp | Finish
