"""The encoded form of every message between the coordinators of neighbouring sites."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec

from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import neighbour_link
from tocsin.wire.site_link import Role

T1 = TopicName("a/b")
MESSAGES: list[tuple[Any, dict[str, Any]]] = [
    (
        neighbour_link.Hello("north", 4, 2, visits=True),
        {"type": "hello", "site": "north", "link": 4, "run": 2, "visits": True},
    ),
    (
        neighbour_link.Welcome("south", 4, 7, visits=True),
        {"type": "welcome", "site": "south", "link": 4, "run": 7, "visits": True},
    ),
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
    (
        neighbour_link.SiteReport(
            [neighbour_link.BrokerState(BrokerId("b1"), Role.EDGE, 2, (1.0, 2.0, 3.0), (None, 4.0, None), [T1])]
        ),
        {
            "type": "site_report",
            "brokers": [["b1", "edge", 2, [1.0, 2.0, 3.0], [None, 4.0, None], ["a/b"]]],
        },
    ),
    (
        neighbour_link.HostReceivers(7, T1, BrokerId("b1"), ["ann/5"], (1.0, 2.0, 3.0), "secret"),
        {
            "type": "host_receivers",
            "number": 7,
            "topic": "a/b",
            "broker": "b1",
            "clients": ["ann/5"],
            "load": [1.0, 2.0, 3.0],
            "token": "secret",
        },
    ),
    (
        neighbour_link.Hosting(7, "ws://edge", "ws://head", {"ann/5": "secret"}),
        {"type": "hosting", "number": 7, "address": "ws://edge", "home": "ws://head", "tokens": {"ann/5": "secret"}},
    ),
    (neighbour_link.NotHosting(7, "busy"), {"type": "not_hosting", "number": 7, "reason": "busy"}),
    (neighbour_link.VisitorArrived(7, "ann/5"), {"type": "visitor_arrived", "number": 7, "client": "ann/5"}),
]


def test_every_message_has_its_encoded_form() -> None:
    union: Any = neighbour_link.FromNeighbour
    assert {type(message) for message, _ in MESSAGES} == set(get_args(union))
    for message, content in MESSAGES:
        text = msgspec.json.encode(message)
        assert text.decode() == json.dumps(content, separators=(",", ":"))
        assert msgspec.json.decode(text, type=union) == message
