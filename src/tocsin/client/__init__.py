"""The SDK: publisher and subscriber for asyncio; `tocsin.client.sync` has blocking ones. Examples: docs/clients.md."""

from __future__ import annotations

from tocsin.client.edge_publisher import EdgePublisher
from tocsin.client.errors import (
    BadResult,
    ClientError,
    Denied,
    RequestRefused,
    ResultsMissed,
    SessionEnded,
    SessionReplaced,
    SubscriptionEnded,
    Unreachable,
    Unread,
)
from tocsin.client.notifications import Gap, Notification, Recovered, Result
from tocsin.client.publisher import Published, Publisher, Refusal
from tocsin.client.subscriber import Subscriber, Subscription
from tocsin.client.timing import Patience
from tocsin.client.topic_events import TopicGap, TopicMessage
from tocsin.client.topics import Topics, TopicSubscription
from tocsin.model.topic import BEGINNING, Position

__all__ = [
    "BEGINNING",
    "BadResult",
    "ClientError",
    "Denied",
    "EdgePublisher",
    "Gap",
    "Notification",
    "Patience",
    "Position",
    "Published",
    "Publisher",
    "Recovered",
    "Refusal",
    "RequestRefused",
    "Result",
    "ResultsMissed",
    "SessionEnded",
    "SessionReplaced",
    "Subscriber",
    "Subscription",
    "SubscriptionEnded",
    "TopicGap",
    "TopicMessage",
    "TopicSubscription",
    "Topics",
    "Unreachable",
    "Unread",
]
