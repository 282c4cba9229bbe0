"""A topic session's view of one connection to a home."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tocsin.model.ids import TopicName

Role = Literal["send", "receive"]
Need = tuple[TopicName, Role]


@dataclass(slots=True, eq=False)
class ClientConnection:
    number: int
    address: str
    opened_s: float | None = None
    heard_s: float = 0.0
    used_s: float = 0.0
    """When something was attached last."""
    beat_s: float = 5.0
    ready: bool = False
    message_bytes: int = 0
    frame_bytes: int = 0
    probes: bool = False
    """True if the broker answers probes."""
    requests: dict[int, Need] = field(default_factory=dict)
    """Attaches without an answer, or what comes before the attach of a receiver that returns to its site."""
    finding: dict[int, TopicName] = field(default_factory=dict)
    """Requests for positions, of receivers that go to another site and are attached elsewhere meanwhile."""
    attached: dict[Need, int] = field(default_factory=dict)
    token: str | None = None
    """For a connection to another site; None: the session's own token."""
    topics: dict[int, TopicName] = field(default_factory=dict)
    """Number of a topic at this broker → the topic."""
