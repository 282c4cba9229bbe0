"""The notifications that an application gets: results in a type of its choice, gaps, and the end of a catch-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tocsin.model.ids import ChannelName, SubscriptionId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """A result of a subscription. Each one is delivered once, in the order of cursors."""

    subscription: SubscriptionId
    channel: ChannelName
    cursor: str
    """A session that resumes from this cursor gets the results after it. The `state=` file stores it."""
    value: T


@dataclass(frozen=True, slots=True)
class Gap:
    """Results before `cursor` have passed their retention, or belong to an earlier epoch of the channel."""

    subscription: SubscriptionId
    cursor: str
    ended: str | None = None
    """Why the data cluster has ended the subscription: its values make the channel's query fail. No results follow."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The broker has delivered everything that was missed during a reconnect or a move.

    `complete` is False if there was a gap.
    """

    subscription: SubscriptionId
    cursor: str
    complete: bool


Notification = Result[T] | Gap | Recovered
