"""The SDK: publisher and subscriber. asyncio here, blocking in `tocsin.client.sync`; docs/clients.md has examples."""

from __future__ import annotations

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
from tocsin.client.patience import Patience
from tocsin.client.publisher import Published, Publisher, Refusal
from tocsin.client.subscriber import Subscriber, Subscription

__all__ = [
    "BadResult", "ClientError", "Denied", "Gap", "Notification", "Patience", "Published", "Publisher", "Recovered",
    "Refusal", "RequestRefused", "Result", "ResultsMissed", "SessionEnded", "SessionReplaced", "Subscriber",
    "Subscription", "SubscriptionEnded", "Unreachable", "Unread",
]  # fmt: skip
