"""What an application gets: results with a type of its choice, gaps, and that a subscription has caught up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tocsin.model.ids import ChannelName, SubscriptionId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """One result of one subscription; comes once, in the order of cursors."""

    subscription: SubscriptionId
    channel: ChannelName
    cursor: str
    """Remember it (or let `state=` do it): a session that resumes from here gets what comes after."""
    value: T


@dataclass(frozen=True, slots=True)
class Gap:
    """Results before `cursor` have passed their retention, or belong to an earlier life of the channel."""

    subscription: SubscriptionId
    cursor: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """After a reconnect or a move: all that was missed came before this, unless `complete` says that a gap did."""

    subscription: SubscriptionId
    cursor: str
    complete: bool


Notification = Result[T] | Gap | Recovered
