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
PublisherId = NewType("PublisherId", str)
"""A publisher of one topic: see `publisher_name`."""


def publisher_name(topic: TopicName, publisher: int) -> PublisherId:
    """The publisher with this number on this topic: its limit and its utility belong to the topic."""
    return PublisherId(f"{publisher}@{topic}")


def split_publisher(name: PublisherId) -> tuple[TopicName, int]:
    number, _, topic = name.partition("@")
    return TopicName(topic), int(number)
