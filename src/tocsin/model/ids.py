"""Ids as NewTypes: plain text at run time, distinct types for the type checker."""

from __future__ import annotations

from typing import NewType

DatasetName = NewType("DatasetName", str)
ChannelName = NewType("ChannelName", str)
FeedName = NewType("FeedName", str)
TopicName = NewType("TopicName", str)
BrokerId = NewType("BrokerId", str)
SubscriberId = NewType("SubscriberId", str)
SubscriptionId = NewType("SubscriptionId", str)
"""A backend subscription: 32 hex digits, the digest of a channel and its canonical parameters."""
