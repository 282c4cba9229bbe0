"""The encoded form of every message between brokers and the data cluster: both sides may run different versions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tocsin.model.cursor import Cursor
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId
from tocsin.wire import cluster as wire

S1 = SubscriptionId("0123456789abcdef0123456789abcdef")
C = ChannelName("Reports")
ROW = msgspec.Raw(b'{"kind":"fire"}')

ENCODED: list[tuple[Any, Any, str]] = [
    (
        wire.SubscribeRequest,
        wire.SubscribeRequest("Reports", [{"kind": "fire"}], "b1", [SubscriberId("ann")]),
        '{"channel":"Reports","parameters":[{"kind":"fire"}],"broker":"b1","users":["ann"]}',
    ),
    (
        list[wire.Granted],
        [wire.Granted(S1, "3-1048576", True)],
        f'[{{"id":"{S1}","cursor":"3-1048576","created":true}}]',
    ),
    (
        list[wire.Granted],
        [wire.Granted(S1, "3-1048576", True, ("user",))],
        f'[{{"id":"{S1}","cursor":"3-1048576","created":true,"bound":["user"]}}]',
    ),
    (wire.UserProofs, wire.UserProofs(["t1"]), '{"tokens":["t1"]}'),
    (wire.ProvenUsers, wire.ProvenUsers([SubscriberId("ann")]), '{"users":["ann"]}'),
    (
        wire.ReleaseRequest,
        wire.ReleaseRequest("Reports", [S1], "b1"),
        f'{{"channel":"Reports","subscriptions":["{S1}"],"broker":"b1"}}',
    ),
    (
        wire.ReleaseRequest,
        wire.ReleaseRequest("Reports", [S1], "b1", unless_listening=True),
        f'{{"channel":"Reports","subscriptions":["{S1}"],"broker":"b1","unless_listening":true}}',
    ),
    (wire.ReleaseAnswer, wire.ReleaseAnswer(7), '{"released":7}'),
    (
        wire.SubscriptionPage,
        wire.SubscriptionPage([wire.ListedSubscription(S1, C, msgspec.Raw(b'["fire"]'), [BrokerId("b1")])], 17),
        f'{{"subscriptions":[{{"id":"{S1}","channel":"Reports","parameters":["fire"],"brokers":["b1"]}}],"next":17}}',
    ),
    (wire.SubscriptionPage, wire.SubscriptionPage([]), '{"subscriptions":[],"next":null}'),
    (wire.Holds, wire.Holds(2, "ab12"), '{"subscriptions":2,"fingerprint":"ab12"}'),
    (
        wire.ResultsRequest,
        wire.ResultsRequest("Reports", {S1: "3-1048576", "x": None}),
        f'{{"channel":"Reports","subscriptions":{{"{S1}":"3-1048576","x":null}}}}',
    ),
    (
        wire.ResultLine,
        wire.ResultLine(S1, "3-1048577", 15, ROW),
        f'{{"subscription":"{S1}","cursor":"3-1048577","bytes":15,"result":{{"kind":"fire"}}}}',
    ),
    (
        wire.ResultLine,
        wire.ResultLine(S1, "3-1048576", gap=True),
        f'{{"subscription":"{S1}","cursor":"3-1048576","gap":true}}',
    ),
    (
        list[wire.OwnRecord],
        [wire.OwnRecord(SubscriberId("ann"), {"lat": msgspec.Raw(b"1.5")})],
        '[{"user":"ann","record":{"lat":1.5}}]',
    ),
    (
        wire.OwnRecordsAnswer,
        wire.OwnRecordsAnswer(4, [wire.RefusedRecord(2, "bad_records", "no")]),
        '{"stored":4,"refused":[{"index":2,"code":"bad_records","message":"no"}]}',
    ),
    (wire.Announced, wire.Ready(5), '{"type":"ready","sequence":5}'),
    (
        wire.Announced,
        wire.Execution(6, C, 3, 12, 1700000000.5, 1, 2, [wire.SubscriptionNews(S1, 4, 300)]),
        '{"type":"execution","sequence":6,"channel":"Reports","epoch":3,"execution":12,"finished_s":1700000000.5,'
        f'"part":1,"parts":2,"subscriptions":[{{"id":"{S1}","results":4,"bytes":300}}]}}',
    ),
    (
        wire.Announced,
        wire.ChannelProgress(6, {C: "3-13631488"}),
        '{"type":"progress","sequence":6,"channels":{"Reports":"3-13631488"}}',
    ),
    (wire.Announced, wire.ChannelProgress(6), '{"type":"progress","sequence":6,"channels":{}}'),
    (wire.Announced, wire.AnnouncementGap(2, 6), '{"type":"gap","after":2,"sequence":6}'),
]


@pytest.mark.parametrize(("kind", "message", "text"), ENCODED)
def test_message_has_its_encoded_form(kind: Any, message: Any, text: str) -> None:
    assert wire.encode(message).decode() == text
    assert msgspec.json.decode(text, type=kind) == message


def test_server_sent_event_has_the_message_without_its_tag() -> None:
    content = msgspec.structs.asdict(wire.AnnouncementGap(2, 6))
    assert wire.encode(content) == b'{"after":2,"sequence":6}'


def test_optional_fields_of_requests_may_be_missing() -> None:
    subscribe = msgspec.json.decode('{"channel":"Reports","parameters":{"kind":"fire"}}', type=wire.SubscribeRequest)
    assert subscribe == wire.SubscribeRequest("Reports", {"kind": "fire"}, None)
    release = msgspec.json.decode('{"channel":"Reports","subscriptions":[]}', type=wire.ReleaseRequest)
    assert release == wire.ReleaseRequest("Reports", [], None, unless_listening=False)


def test_fields_of_a_newer_version_are_ignored() -> None:
    line = wire.decode_line(json.dumps({"subscription": S1, "cursor": "1-2", "result": {}, "more": [1]}).encode())
    assert bytes(line.result) == b"{}"
    assert wire.decode_announced(b'{"type":"ready","sequence":1,"more":{}}') == wire.Ready(1)


def test_paths_queries_and_keys_stay_the_same() -> None:
    assert (wire.SUBSCRIPTIONS, wire.RELEASES, wire.RESULTS) == (
        "/v1/subscriptions",
        "/v1/subscriptions/delete",
        "/v1/results",
    )
    assert wire.HOLDS.format(broker="b1") == "/v1/brokers/b1/holds"
    assert wire.OWN_RECORDS.format(name="Places") == "/v1/datasets/Places/own-records"
    assert wire.announcements_path("b1", None) == "/v1/brokers/b1/announcements"
    assert wire.announcements_path("b1", 0) == "/v1/brokers/b1/announcements?after=0"
    assert list(wire.page_query("b1", 10, 0).items()) == [("broker", "b1"), ("after", 0), ("limit", 10)]
    assert wire.page_query("b1", 10) == {"broker": "b1", "limit": 10}
    assert (wire.CURSOR_HEADER, wire.GAP_HEADER) == ("Tocsin-Cursor", "Tocsin-Gap")
    assert (wire.CURSOR_METADATA, wire.GAP_METADATA) == ("tocsin.cursor", "tocsin.gap")


def test_records_of_subscribers_are_encoded_from_json_text() -> None:
    body = wire.encode_own_records([(SubscriberId('a"b'), b'{"lat":1.5}')])
    [record] = msgspec.json.decode(body, type=list[wire.OwnRecord])
    assert record == wire.OwnRecord(SubscriberId('a"b'), {"lat": msgspec.Raw(b"1.5")})


def test_text_that_is_no_cursor_raises() -> None:
    assert wire.decode_cursor("3-17") == Cursor(3, 17)
    with pytest.raises(ValueError, match="'nonsense' as a cursor"):
        wire.decode_cursor("nonsense")
