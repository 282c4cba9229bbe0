"""The encoded form of every message between the coordinators of neighbouring sites."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec

from tocsin.model.ids import TopicName
from tocsin.wire import neighbour_link

T1 = TopicName("a/b")
MESSAGES: list[tuple[Any, dict[str, Any]]] = [
    (neighbour_link.Hello("north", 4, 2), {"type": "hello", "site": "north", "link": 4, "run": 2}),
    (neighbour_link.Welcome("south", 4, 7), {"type": "welcome", "site": "south", "link": 4, "run": 7}),
    (
        neighbour_link.Advertise(T1, ["east", "south"], neighbour_link.Kept(3, 2, 1 << 20, 60.0)),
        {
            "type": "advertise",
            "topic": "a/b",
            "path": ["east", "south"],
            "kept": {"replicas": 3, "quorum": 2, "retain_bytes": 1 << 20, "retain_s": 60.0},
        },
    ),
    (neighbour_link.Advertised(), {"type": "advertised"}),
    (neighbour_link.Withdraw(T1, "east"), {"type": "withdraw", "topic": "a/b", "source": "east"}),
    (neighbour_link.SubscribeFlow(T1, "east"), {"type": "subscribe_flow", "topic": "a/b", "source": "east"}),
    (neighbour_link.UnsubscribeFlow(T1, "east"), {"type": "unsubscribe_flow", "topic": "a/b", "source": "east"}),
    (neighbour_link.Ping(5), {"type": "ping", "number": 5}),
    (neighbour_link.Pong(5), {"type": "pong", "number": 5}),
]


def test_every_message_has_its_encoded_form() -> None:
    union: Any = neighbour_link.FromNeighbour
    assert {type(message) for message, _ in MESSAGES} == set(get_args(union))
    for message, content in MESSAGES:
        text = msgspec.json.encode(message)
        assert text.decode() == json.dumps(content, separators=(",", ":"))
        assert msgspec.json.decode(text, type=union) == message
