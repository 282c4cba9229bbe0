"""The encoded form of every message between a broker and the coordinator."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId, ChannelName, SubscriberId, SubscriptionId, TopicName
from tocsin.wire import link, site_link, topic_link
from tocsin.wire.coordinates import CoordinatePeers, CoordinateReport, Peer
from tocsin.wire.topic_log import LogPlan, Replica

HERE = Coordinate((0.01, *[0.0] * 7), 0.001, 0.0, 0.2)
HERE_JSON = {"vector": [0.01, *[0.0] * 7], "height_s": 0.001, "adjustment_s": 0.0, "error": 0.2}
ANN = SubscriberId("ann")
S1 = SubscriptionId("s1")
B2 = BrokerId("b2")
T1 = TopicName("a/b")
HANDED_OVER = topic_link.TopicState(7, 2, [(5, 9)], [(3, [5])])
HANDED_OVER_JSON = {"sequence": 7, "since": 2, "publishers": [[5, 9]], "owners": [[3, [5]]]}
EDGE, LIMITS = site_link.Role.EDGE, site_link.Capacity(1.0, 2.0)
LIMITS_JSON = {"in_bytes_per_s": 1.0, "out_bytes_per_s": 2.0, "matched_per_s": None}
PLAN = LogPlan(2, [Replica(B2, "ws://b2")], 1, 1 << 20, 60.0, 7)
PLAN_JSON = {
    "created": 2,
    "replicas": [{"broker": "b2", "address": "ws://b2"}],
    "quorum": 1,
    "retain_bytes": 1 << 20,
    "retain_s": 60.0,
    "least": 7,
}
OWNED_JSON = {"topic": "a/b", "epoch": 3, "state": HANDED_OVER_JSON, "log": PLAN_JSON, "record": None}
IMPORTS = site_link.ImportFlows(T1, 2, {"south": ["east"]})
IMPORTS_JSON = {"type": "import_flows", "topic": "a/b", "created": 2, "flows": {"south": ["east"]}}
NEIGHBOUR = site_link.NeighbourAccess("south", "https://south", "secret", "ca.pem")
STATE = link.SubscriberState(ANN, [link.Frontend(S1, ChannelName("C"), {"kind": "fire"}, "1-5")])
STATE_JSON = {
    "subscriber": "ann",
    "subscriptions": [{"subscription": "s1", "channel": "C", "parameters": {"kind": "fire"}, "cursor": "1-5"}],
    "webhook": None,
}

FROM_BROKER: list[tuple[Any, dict[str, Any]]] = [
    (
        link.Register(
            BrokerId("b1"), "i1", "ws://b1", 2.0, 60.1, 24.9, [ANN], [ANN], {ANN: "t1"}, True, True, EDGE, True, LIMITS
        ),
        {
            "type": "register",
            "broker": "b1",
            "incarnation": "i1",
            "address": "ws://b1",
            "capacity": 2.0,
            "lat": 60.1,
            "lon": 24.9,
            "online": ["ann"],
            "hosting": ["ann"],
            "tokens": {"ann": "t1"},
            "topics": True,
            "coordinates": True,
            "role": "edge",
            "standby": True,
            "limits": LIMITS_JSON,
        },
    ),
    (link.Heartbeat(1, 2, 3), {"type": "heartbeat", "sessions": 1, "frontend": 2, "backend": 3}),
    (
        link.LoadReport(
            1.0, 2.0, {S1: 3.5}, 4.0, 0.1, 0.2, {S1: 0.5}, [S1], 7, 8, 5, 0.9, True, {ANN: (60.1, 24.9)}, True
        ),
        {
            "type": "load",
            "in_bytes_per_s": 1.0,
            "out_bytes_per_s": 2.0,
            "rates": {"s1": 3.5},
            "notifications_per_s": 4.0,
            "delivery_s_p50": 0.1,
            "delivery_s_p95": 0.2,
            "shares": {"s1": 0.5},
            "released": ["s1"],
            "in_bytes": 7,
            "out_bytes": 8,
            "catch_up_bytes": 5,
            "delivery_ratio": 0.9,
            "surge": True,
            "places": {"ann": [60.1, 24.9]},
            "overload": True,
        },
    ),
    (
        link.SessionOpened(ANN, "m1", "t1"),
        {"type": "session_opened", "subscriber": "ann", "migration": "m1", "token": "t1"},
    ),
    (link.SessionClosed(ANN, "slow"), {"type": "session_closed", "subscriber": "ann", "reason": "slow"}),
    (
        link.Changed(
            4, ANN, list(STATE.subscriptions), [S1], {S1: "1-6"}, link.Webhook("https://x", ["whsec_a"]), token="t"
        ),
        {
            "type": "changed",
            "number": 4,
            "subscriber": "ann",
            "added": STATE_JSON["subscriptions"],
            "removed": ["s1"],
            "acked": {"s1": "1-6"},
            "webhook": {"url": "https://x", "secrets": ["whsec_a"]},
            "webhook_removed": False,
            "token": "t",
        },
    ),
    (link.StateRequest(ANN, "t1"), {"type": "wanted", "subscriber": "ann", "token": "t1"}),
    (CoordinateReport(HERE), {"type": "coordinate", "coordinate": HERE_JSON}),
    (link.Prepared("m1"), {"type": "prepared", "migration": "m1"}),
    (
        link.PrepareFailed("m1", "not_ready", "no"),
        {"type": "prepare_failed", "migration": "m1", "code": "not_ready", "message": "no"},
    ),
    (
        link.HandOverFailed("m1", "not_ready", "no"),
        {"type": "hand_over_failed", "migration": "m1", "code": "not_ready", "message": "no"},
    ),
    (link.Released(ANN), {"type": "released", "subscriber": "ann", "migration": None}),
    (
        site_link.SiteLoad([site_link.TopicLoad(T1, 1.0, 2.0, 3.0, 4, 5)], 6, 7, 8.0),
        {
            "type": "site_load",
            "topics": [["a/b", 1.0, 2.0, 3.0, 4, 5]],
            "waiting_bytes": 6,
            "waiting_messages": 7,
            "sent_bytes_per_s": 8.0,
        },
    ),
    (
        site_link.SiteProfile(3, {T1: [("ann/7", 9.5)]}),
        {"type": "site_profile", "number": 3, "topics": {"a/b": [["ann/7", 9.5]]}},
    ),
    (site_link.ReceiverArrived(T1, "ann/7"), {"type": "receiver_arrived", "topic": "a/b", "client": "ann/7"}),
    (
        site_link.ReceiverLeft(T1, "ann/7", True),
        {"type": "receiver_left", "topic": "a/b", "client": "ann/7", "gone": True},
    ),
    (
        site_link.Ratings({T1: [(5, 1.4, 2)]}),
        {"type": "ratings", "topics": {"a/b": [[5, 1.4, 2]]}},
    ),
    (
        site_link.PublisherRates(3, {T1: [site_link.PublisherRate(5, 70.0, 100.0, 9.0)]}),
        {"type": "publisher_rates", "number": 3, "topics": {"a/b": [[5, 70.0, 100.0, 9.0]]}},
    ),
    (
        site_link.FlowDemand([site_link.TopicDemand(T1, 3, True, False)]),
        {"type": "flow_demand", "topics": [["a/b", 3, True, False]]},
    ),
    (
        site_link.FlowCounts([site_link.FlowCount("south", "east", T1, 9, 1)]),
        {"type": "flow_counts", "flows": [["south", "east", "a/b", 9, 1]]},
    ),
    (topic_link.RenewLease(4), {"type": "renew_lease", "number": 4}),
    (topic_link.ReturnLease(), {"type": "return_lease"}),
    (topic_link.TopicPrepared(T1, 3), {"type": "topic_prepared", "topic": "a/b", "epoch": 3}),
    (
        topic_link.TopicStopped(T1, 3, HANDED_OVER, True),
        {"type": "topic_stopped", "topic": "a/b", "epoch": 3, "state": HANDED_OVER_JSON, "handed_over": True},
    ),
    (
        topic_link.TopicKept(T1, 3, 4),
        {"type": "topic_kept", "topic": "a/b", "epoch": 3, "target_epoch": 4},
    ),
    (topic_link.TopicOpened(T1, 3), {"type": "topic_opened", "topic": "a/b", "epoch": 3}),
    (topic_link.TopicRefused(T1, 3, "full"), {"type": "topic_refused", "topic": "a/b", "epoch": 3, "message": "full"}),
    (
        topic_link.TopicFenced(T1, 5, 3, 7),
        {"type": "topic_fenced", "topic": "a/b", "epoch": 5, "log_epoch": 3, "end": 7},
    ),
    (topic_link.TopicCopied(T1, 3, B2), {"type": "topic_copied", "topic": "a/b", "epoch": 3, "target": "b2"}),
    (
        topic_link.LogReport(T1, 3, [B2], "b1: away"),
        {"type": "log_report", "topic": "a/b", "epoch": 3, "in_sync": ["b2"], "problem": "b1: away"},
    ),
    (
        topic_link.TopicLatency(T1, 3, 0.05, 1, 2, HERE, None, 0.01, 5.0, 10.0, ["ann"], ["bob"]),
        {
            "type": "topic_latency",
            "topic": "a/b",
            "epoch": 3,
            "worst_s": 0.05,
            "senders": 1,
            "receivers": 2,
            "sender_centroid": HERE_JSON,
            "receiver_centroid": None,
            "deviation_s": 0.01,
            "in_per_s": 5.0,
            "out_per_s": 10.0,
            "publishers": ["ann"],
            "subscribers": ["bob"],
        },
    ),
]
FROM_COORDINATOR: list[tuple[Any, dict[str, Any]]] = [
    (
        link.Registered(1.0, 5.0, True),
        {"type": "registered", "heartbeat_s": 1.0, "report_s": 5.0, "accepting": True},
    ),
    (link.Stored(9), {"type": "stored", "upto": 9}),
    (link.Adopt([STATE]), {"type": "adopt", "subscribers": [STATE_JSON]}),
    (
        link.Prepare("m1", STATE, 10.0),
        {"type": "prepare", "migration": "m1", "state": STATE_JSON, "deadline_s": 10.0},
    ),
    (
        link.HandOver("m1", ANN, B2, "ws://b2", "t", 10.0),
        {
            "type": "hand_over",
            "migration": "m1",
            "subscriber": "ann",
            "broker": "b2",
            "address": "ws://b2",
            "token": "t",
            "deadline_s": 10.0,
        },
    ),
    (link.Release(ANN, "m1"), {"type": "release", "subscriber": "ann", "migration": "m1"}),
    (link.Abandon("m1", ANN), {"type": "abandon", "migration": "m1", "subscriber": "ann"}),
    (
        link.Accepting(False, True, 5e6),
        {"type": "accepting", "accepting": False, "draining": True, "overload_bytes_per_s": 5e6},
    ),
    (link.Beat(), {"type": "beat"}),
    (
        CoordinatePeers([Peer(B2, "ws://b2")]),
        {"type": "coordinate_peers", "peers": [{"broker": "b2", "address": "ws://b2"}]},
    ),
    (site_link.SetCapacity(LIMITS), {"type": "set_capacity", "capacity": LIMITS_JSON}),
    (site_link.ReportProfile(3), {"type": "report_profile", "number": 3}),
    (
        site_link.ExpectReceivers(T1, ["ann/7"]),
        {"type": "expect_receivers", "topic": "a/b", "clients": ["ann/7"]},
    ),
    (
        site_link.RedirectReceivers(T1, ["ann/7"], B2, "ws://b2"),
        {
            "type": "redirect_receivers",
            "topic": "a/b",
            "clients": ["ann/7"],
            "broker": "b2",
            "address": "ws://b2",
            "visitors": {},
        },
    ),
    (site_link.ReleaseVisitors("east"), {"type": "release_visitors", "site": "east"}),
    (site_link.ReportPublishers(3), {"type": "report_publishers", "number": 3}),
    (site_link.LimitPublishers({T1: [(5, 10.0)]}), {"type": "limit_publishers", "limits": {"a/b": [[5, 10.0]]}}),
    (IMPORTS, IMPORTS_JSON),
    (
        site_link.Federate("north", [NEIGHBOUR], [IMPORTS], False),
        {
            "type": "federate",
            "site": "north",
            "neighbours": [{"site": "south", "coordinator": "https://south", "token": "secret", "ca": "ca.pem"}],
            "imports": [IMPORTS_JSON],
            "complete": False,
        },
    ),
    (topic_link.LeaseRenewed(4, 5.0), {"type": "lease_renewed", "number": 4, "lease_s": 5.0}),
    (
        topic_link.OwnTopics([topic_link.OwnedTopic(T1, 3, HANDED_OVER, PLAN)], [(T1, 2)], [(T1, 4)]),
        {"type": "own_topics", "topics": [OWNED_JSON], "logs": [["a/b", 2]], "arriving": [["a/b", 4]]},
    ),
    (
        topic_link.OpenTopic(topic_link.OwnedTopic(T1, 3, HANDED_OVER, PLAN)),
        {"type": "open_topic", "topic": OWNED_JSON},
    ),
    (
        topic_link.PrepareTopic(T1, 3, 2),
        {"type": "prepare_topic", "topic": "a/b", "epoch": 3, "created": 2, "record": None},
    ),
    (
        topic_link.StopTopic(T1, 3, B2, "ws://b2", [B2], 4, 3.0),
        {
            "type": "stop_topic",
            "topic": "a/b",
            "epoch": 3,
            "broker": "b2",
            "address": "ws://b2",
            "replicas": ["b2"],
            "target_epoch": 4,
            "wait_s": 3.0,
        },
    ),
    (
        topic_link.KeepTopic(T1, 3, 4),
        {"type": "keep_topic", "topic": "a/b", "epoch": 3, "target_epoch": 4},
    ),
    (topic_link.ReportTopics(), {"type": "report_topics"}),
    (topic_link.FollowTopic(T1, 2), {"type": "follow_topic", "topic": "a/b", "created": 2}),
    (topic_link.FenceTopic(T1, 2, 5), {"type": "fence_topic", "topic": "a/b", "created": 2, "epoch": 5}),
    (
        topic_link.CopyTopic(T1, 3, Replica(B2, "ws://b2")),
        {"type": "copy_topic", "topic": "a/b", "epoch": 3, "target": {"broker": "b2", "address": "ws://b2"}},
    ),
    (
        topic_link.ReleaseTopic(T1, 3, True, 2),
        {"type": "release_topic", "topic": "a/b", "epoch": 3, "deleted": True, "drop_log": 2},
    ),
]


@pytest.mark.parametrize(
    ("union", "messages"), [(link.FromBroker, FROM_BROKER), (link.FromCoordinator, FROM_COORDINATOR)]
)
def test_every_message_has_its_encoded_form(union: Any, messages: list[tuple[Any, dict[str, Any]]]) -> None:
    assert {type(message) for message, _ in messages} == set(get_args(union))
    for message, content in messages:
        text = msgspec.json.encode(message)
        assert text.decode() == json.dumps(content, separators=(",", ":"))
        assert msgspec.json.decode(text, type=union) == message


def test_printed_neighbour_does_not_show_its_token() -> None:
    assert "secret" not in repr(site_link.Federate("north", [NEIGHBOUR]))
