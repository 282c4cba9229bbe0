"""The encoded form of every message between a subscriber and its broker."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from tocsin.model.ids import BrokerId, ChannelName, DatasetName, SubscriberId, SubscriptionId
from tocsin.wire import session

S1 = SubscriptionId("s1")
C = ChannelName("C")
HELD = session.Held(S1, C, {"kind": "fire"}, "1-5")
HELD_JSON = {"subscription": "s1", "channel": "C", "parameters": {"kind": "fire"}, "cursor": "1-5"}

FROM_SUBSCRIBER: list[tuple[Any, dict[str, Any]]] = [
    (session.Login(1, "t", {S1: "1-5"}), {"op": "login", "id": 1, "token": "t", "resume": {"s1": "1-5"}}),
    (session.Logout(2), {"op": "logout", "id": 2}),
    (
        session.Subscribe(3, C, {"kind": "fire"}, "1-5"),
        {"op": "subscribe", "id": 3, "channel": "C", "parameters": {"kind": "fire"}, "after": "1-5"},
    ),
    (session.Unsubscribe(4, S1), {"op": "unsubscribe", "id": 4, "subscription": "s1"}),
    (session.List(5), {"op": "list", "id": 5}),
    (session.Ack(6, {S1: "1-6"}), {"op": "ack", "id": 6, "cursors": {"s1": "1-6"}}),
    (session.Ping(7), {"op": "ping", "id": 7}),
    (
        session.Update(8, DatasetName("D"), {"lat": 1.5}),
        {"op": "update", "id": 8, "dataset": "D", "record": {"lat": 1.5}},
    ),
]
TO_SUBSCRIBER: list[tuple[Any, dict[str, Any]]] = [
    (
        session.LoggedIn(1, SubscriberId("ann"), BrokerId("b1"), "x", [HELD], 15.0),
        {
            "type": "logged_in",
            "id": 1,
            "subscriber": "ann",
            "broker": "b1",
            "session": "x",
            "subscriptions": [HELD_JSON],
            "progress_s": 15.0,
        },
    ),
    (session.LoggedOut(2), {"type": "logged_out", "id": 2}),
    (session.Subscribed(3, HELD, True), {"type": "subscribed", "id": 3, "held": HELD_JSON, "stored": True}),
    (session.Unsubscribed(4, S1), {"type": "unsubscribed", "id": 4, "subscription": "s1"}),
    (session.Subscriptions(5, [HELD]), {"type": "subscriptions", "id": 5, "subscriptions": [HELD_JSON]}),
    (session.Acked(6), {"type": "acked", "id": 6}),
    (session.Pong(7, 1.5), {"type": "pong", "id": 7, "at_s": 1.5}),
    (session.Updated(8), {"type": "updated", "id": 8}),
    (
        session.Refused(8, "not_ready", "later", 5.0),
        {"type": "refused", "id": 8, "code": "not_ready", "message": "later", "retry_after_s": 5.0},
    ),
    (
        session.Result(S1, C, "1-6", msgspec.Raw(b'{"n":1}')),
        {"type": "result", "subscription": "s1", "channel": "C", "cursor": "1-6", "result": {"n": 1}},
    ),
    (
        session.Recovered(S1, "1-6", False),
        {"type": "recovered", "subscription": "s1", "cursor": "1-6", "recovered": False},
    ),
    (session.Gap(S1, "1-5"), {"type": "gap", "subscription": "s1", "cursor": "1-5"}),
    (session.Progress({C: "1-9"}, 2.5), {"type": "progress", "channels": {"C": "1-9"}, "at_s": 2.5}),
    (
        session.Move("m1", BrokerId("b2"), "ws://b2", "t", 10.0),
        {
            "type": "move",
            "migration": "m1",
            "broker": "b2",
            "address": "ws://b2",
            "token": "t",
            "deadline_s": 10.0,
        },
    ),
    (
        session.Closing("draining", "bye", True),
        {"type": "closing", "code": "draining", "message": "bye", "reconnect": True},
    ),
]


@pytest.mark.parametrize(
    ("union", "messages"), [(session.FromSubscriber, FROM_SUBSCRIBER), (session.ToSubscriber, TO_SUBSCRIBER)]
)
def test_every_message_has_its_encoded_form(union: Any, messages: list[tuple[Any, dict[str, Any]]]) -> None:
    assert {type(message) for message, _ in messages} == set(get_args(union))
    for message, content in messages:
        text = msgspec.json.encode(message)
        assert text.decode() == json.dumps(content, separators=(",", ":"))
        assert msgspec.json.decode(text, type=union) == message


def test_request_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode('{"op":"ping","id":1,"more":2}', type=session.FromSubscriber)


def test_every_close_reason_has_its_code() -> None:
    assert session.CLOSE_CODES == {
        "logged_out": (1000, False),
        "stopping": (1012, True),
        "moved": (4000, False),
        "replaced": (4001, False),
        "slow": (4002, True),
        "draining": (4003, True),
        "unauthenticated": (4401, False),
        "expired": (4402, True),
        "revoked": (4403, False),
        "bad_request": (4400, False),
        "too_large": (1009, False),
        "login_timeout": (4408, True),
    }
