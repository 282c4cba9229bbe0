"""The encoded form of every message between a client and the home of its topics."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, TopicName
from tocsin.wire import topic

T1 = TopicName("a/b")
HERE = Coordinate((0.01, *[0.0] * 7), 0.001, 0.0, 0.2)
HERE_JSON = {"vector": [0.01, *[0.0] * 7], "height_s": 0.001, "adjustment_s": 0.0, "error": 0.2}
FROM_CLIENT: list[tuple[Any, dict[str, Any]]] = [
    (topic.Login(1, "t", 77), {"op": "login", "id": 1, "token": "t", "run": 77}),
    (
        topic.AttachSender(2, T1, 77, 5, prompt=False),
        {"op": "attach_sender", "id": 2, "topic": "a/b", "run": 77, "number": 5, "prompt": False},
    ),
    (
        topic.AttachReceiver(3, T1, (4, 9), True, {"east": 7}),
        {
            "op": "attach_receiver",
            "id": 3,
            "topic": "a/b",
            "after": [4, 9],
            "early": True,
            "flows": {"east": 7},
            "at_home": False,
        },
    ),
    (topic.Ready(6), {"op": "ready", "at": 6}),
    (topic.Publish(6, 5, [b"x", b""]), {"op": "publish", "at": 6, "number": 5, "messages": ["eA==", ""]}),
    (topic.Detach(4, 6), {"op": "detach", "id": 4, "at": 6}),
    (topic.Ping(5), {"op": "ping", "id": 5}),
    (topic.Probe(-1), {"op": "probe", "id": -1}),
    (
        topic.Feedback(6, {5: 0.5}, True, 2.0),
        {"op": "feedback", "at": 6, "ratings": {"5": 0.5}, "may_skip": True, "tolerates_s": 2.0},
    ),
    (topic.Offered(6, 70.0), {"op": "offered", "at": 6, "per_s": 70.0}),
    (
        topic.FindPosition(9, T1, {1 << 53: 7}),
        {"op": "find_position", "id": 9, "topic": "a/b", "flows": {str(1 << 53): 7}, "after": None},
    ),
    (topic.Locate(9, HERE, True), {"op": "locate", "nonce": 9, "coordinate": HERE_JSON, "moved": True}),
]
TO_CLIENT: list[tuple[Any, dict[str, Any]]] = [
    (
        topic.LoggedIn(1, BrokerId("b1"), 5.0, 100, 1000, True),
        {
            "type": "logged_in",
            "id": 1,
            "broker": "b1",
            "beat_s": 5.0,
            "message_bytes": 100,
            "frame_bytes": 1000,
            "probes": True,
        },
    ),
    (topic.SenderAttached(2, 6, 5), {"type": "sender_attached", "id": 2, "at": 6, "number": 5}),
    (
        topic.ReceiverAttached(3, 6, 4, 9, (2, 5), 3),
        {"type": "receiver_attached", "id": 3, "at": 6, "epoch": 4, "sequence": 9, "missed": [2, 5], "since": 3},
    ),
    (topic.Waiting(3, 6), {"type": "waiting", "id": 3, "at": 6}),
    (topic.Detached(4), {"type": "detached", "id": 4}),
    (topic.Pong(5), {"type": "pong", "id": 5}),
    (topic.Probed(-1, 9, HERE), {"type": "probed", "id": -1, "nonce": 9, "coordinate": HERE_JSON}),
    (
        topic.Refused(2, "not_home", "look it up", 1.0),
        {"type": "refused", "id": 2, "code": "not_home", "message": "look it up", "retry_after_s": 1.0},
    ),
    (
        topic.Messages(6, 4, 9, [(1, 2, b"x")]),
        {"type": "messages", "at": 6, "epoch": 4, "sequence": 9, "messages": [[1, 2, "eA=="]]},
    ),
    (topic.Gap(6, 4, 9, 11), {"type": "gap", "at": 6, "epoch": 4, "first": 9, "last": 11}),
    (topic.Acknowledged(6, 5), {"type": "acknowledged", "at": 6, "number": 5}),
    (
        topic.NotAccepted(6, 5, "too_large", "no"),
        {
            "type": "not_accepted",
            "at": 6,
            "number": 5,
            "code": "too_large",
            "message": "no",
            "retry_after_s": None,
        },
    ),
    (
        topic.Moving(6, T1, BrokerId("b2"), "ws://b2"),
        {"type": "moving", "at": 6, "topic": "a/b", "broker": "b2", "address": "ws://b2"},
    ),
    (
        topic.PositionFound(9, 1 << 53, 3, 40, 2, 41, {5: 6}),
        {
            "type": "position_found",
            "id": 9,
            "own": 1 << 53,
            "epoch": 3,
            "sequence": 40,
            "since": 2,
            "own_sequence": 41,
            "flows": {"5": 6},
            "missed": False,
        },
    ),
    (
        topic.Redirect(6, T1, BrokerId("b2"), "ws://b2"),
        {"type": "redirect", "at": 6, "topic": "a/b", "broker": "b2", "address": "ws://b2", "visitor": None},
    ),
    (
        topic.Redirect(6, T1, BrokerId("b2"), "ws://b2", topic.VisitorAccess("west", "ws://b1", "secret")),
        {
            "type": "redirect",
            "at": 6,
            "topic": "a/b",
            "broker": "b2",
            "address": "ws://b2",
            "visitor": {"site": "west", "home": "ws://b1", "token": "secret"},
        },
    ),
    (topic.Limit(6, 10.0), {"type": "limit", "at": 6, "per_s": 10.0}),
    (
        topic.Moved(6, T1, BrokerId("b2"), "ws://b2"),
        {"type": "moved", "at": 6, "topic": "a/b", "broker": "b2", "address": "ws://b2"},
    ),
    (
        topic.Ended(6, T1, "unknown_topic", "deleted"),
        {"type": "ended", "at": 6, "topic": "a/b", "code": "unknown_topic", "message": "deleted"},
    ),
    (topic.Beat(), {"type": "beat"}),
    (
        topic.Closing("expired", "over", True),
        {"type": "closing", "code": "expired", "message": "over", "reconnect": True},
    ),
]


@pytest.mark.parametrize(("union", "messages"), [(topic.FromClient, FROM_CLIENT), (topic.ToClient, TO_CLIENT)])
def test_every_message_has_its_encoded_form(union: Any, messages: list[tuple[Any, dict[str, Any]]]) -> None:
    assert {type(message) for message, _ in messages} == set(get_args(union))
    for message, content in messages:
        text = msgspec.json.encode(message)
        assert text.decode() == json.dumps(content, separators=(",", ":"))
        assert msgspec.json.decode(text, type=union) == message
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union) == message


@pytest.mark.parametrize("content", [{"op": "publish", "at": 1, "number": 1}, {"op": "ping", "id": 1, "more": 2}, {}])
def test_malformed_requests_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(content).encode(), type=topic.FromClient)
