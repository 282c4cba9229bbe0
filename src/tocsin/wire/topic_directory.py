"""The coordinator's directory of topics, over REST: which topics there are, and the home of each.

A client posts a `WatchRequest` with everything that it sends to and receives from. The coordinator answers at once if
the client does not have the present revision, else when something changes, or after `wait_s` with the same content.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, DatasetName, TopicName

TOPICS = "/v1/topics"
WATCH = "/v1/topics/watch"
MOST_NAMES = 10_000
LONGEST_WAIT_S = 60.0


class CreateRequest(msgspec.Struct):
    """A topic is persistent if it has `replicas`, `quorum`, `retain_bytes` or `retain_s`, or `persistent` is true."""

    topic: str
    within_s: Annotated[float, msgspec.Meta(gt=0, le=3_600)] | None = None
    lat: Annotated[float, msgspec.Meta(ge=-90, le=90)] | None = None
    lon: Annotated[float, msgspec.Meta(ge=-180, le=180)] | None = None
    coordinate: Coordinate | None = None
    """The network coordinate of the topic's clients; the nearest broker by it becomes the home."""
    persistent: bool = False
    replicas: int | None = None
    """Brokers that keep the log, the home included; 1 by default."""
    quorum: int | None = None
    """Brokers that must have a message on disk before it is acknowledged; the majority by default."""
    retain_bytes: int | None = None
    retain_s: float | None = None
    record_into: str | None = None
    """The dataset that gets every message as a record."""
    replace: bool = False
    """If the topic exists, change it in place, except its replicas and its quorum: CREATE OR REPLACE TOPIC."""
    delay_s: Annotated[float, msgspec.Meta(gt=0, le=3_600)] | None = None
    """The delay that receivers tolerate at most: DELAY."""
    protected_per_s: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] | None = None
    """Messages/s that publishers keep together in any congestion: PROTECTED."""


class MoveRequest(msgspec.Struct):
    topic: str
    target: str


class RedirectRequest(msgspec.Struct):
    """Send receivers of a topic from one edge of a site to another."""

    topic: str
    source: str
    target: str
    clients: list[str] = []
    """`<user>/<run>`; none for all."""


class WatchRequest(msgspec.Struct):
    send: Annotated[list[TopicName], msgspec.Meta(max_length=MOST_NAMES)] = []
    """Topics to publish to. A topic that does not exist is created, where a prefix allows it."""
    receive: Annotated[list[str], msgspec.Meta(max_length=MOST_NAMES)] = []
    """Patterns to receive."""
    after: str | None = None
    """The revision that the client has."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_S)] = 0.0
    coordinate: Coordinate | None = None
    """The client's network coordinate: the home of a topic that this request creates is near."""
    creators: dict[str, list[int]] = {}
    """From a broker: user → the indexes in `send` of topics that clients of this user publish to. Such a user creates
    the topics, and has a quota."""


class TopicEntry(msgspec.Struct, frozen=True):
    topic: TopicName
    created: int
    """Its first epoch."""
    epoch: int
    home: BrokerId | None
    """None while no broker can be the home."""
    address: str | None
    within_s: float | None = None
    moving_to: BrokerId | None = None
    receive: bool = True
    """False in a watch if the topic is listed only because the client sends to it."""
    persistent: bool = False
    quorum: int | None = None
    replicas: list[BrokerId] = []
    """Brokers that keep the log of a persistent topic."""
    status: str | None = None
    """Why a persistent topic is not available, or has fewer replicas than it should; None if all is well."""
    retain_bytes: int | None = None
    retain_s: float | None = None
    record_into: DatasetName | None = None
    """The dataset that gets every message as a record."""
    worst_latency_s: float | None = None
    """From the slowest sender over the home to the slowest receiver, one way, as the home measured them; None in a
    watch, and without measurements."""
    shortfall: str | None = None
    """Why no broker can keep the bound; None in a watch, and if one can."""
    move_step: str | None = None
    """The step of the move that is in progress; None in a watch, and without a move."""
    receive_at: str | None = None
    """In a watch: the address of the edge at which a new receiver attaches; None: at the home."""
    delay_s: float | None = None
    protected_per_s: float | None = None


class Refusal(msgspec.Struct, frozen=True):
    code: str
    message: str


class WatchAnswer(msgspec.Struct, frozen=True):
    revision: str
    epoch: int
    """The last epoch that was given out: a topic with a later `created` did not exist yet."""
    topics: list[TopicEntry]
    token: str
    """For the homes: it has the caller's scopes for topics."""
    refused: dict[TopicName, Refusal] = {}
    """Topics of `send` that the client cannot use."""
    landmarks: list[str] = []
    """Addresses of a few brokers, by which a client finds its network coordinate."""
