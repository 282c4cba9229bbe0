"""Updates of subscribers: sent together, replaced by newer ones, answered when stored, refused one by one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.broker.simulated import subscribed
from tocsin.broker import effects, events
from tocsin.broker.core import Broker
from tocsin.broker.hosted import CallId, Requester, SessionId
from tocsin.broker.state import Limits
from tocsin.broker.updates import RECORDS_AT_ONCE, REQUESTS_AT_ONCE, UNANSWERED_EACH
from tocsin.model.ids import BrokerId, DatasetName, SubscriberId
from tocsin.wire import link
from tocsin.wire import session as wire
from tocsin.wire.cluster import RefusedRecord
from tocsin.wire.errors import Code

HOMES, PLACES = DatasetName("Homes"), DatasetName("Places")


class Host:
    """A broker with the sessions of some subscribers. The test plays the data cluster."""

    def __init__(self, *names: str, **limits: Any) -> None:
        self.core = Broker(BrokerId("a"), "run", Limits(**limits), lambda: 0.5)
        self.now_s = 100.0
        self.sessions = {name: SessionId(number) for number, name in enumerate(names, 1)}
        self.batches: list[effects.StoreUpdates] = []
        """Requests that have reached the data cluster and have no answer yet."""
        self.answers: dict[tuple[str, int], wire.ToSubscriber] = {}
        """(subscriber, request) → its answer. A REST call has the subscriber "call"."""
        for name, session in self.sessions.items():
            self.handle(events.LoginRequested(Requester(session=session), SubscriberId(name), 0))

    def handle(self, event: events.Event) -> None:
        for effect in self.core.handle(event, self.now_s):
            match effect:
                case effects.StoreUpdates():
                    self.batches.append(effect)
                case effects.SendToSessions((session,), message, _) if isinstance(message, wire.Answer):
                    [name] = [name for name, own in self.sessions.items() if own == session]
                    self._on_answer(name, message)
                case effects.AnswerCall(_, message) if isinstance(message, wire.Answer):
                    self._on_answer("call", message)

    def _on_answer(self, name: str, message: wire.ToSubscriber) -> None:
        assert isinstance(message, wire.Answer) and (name, message.id) not in self.answers, "answered twice"
        self.answers[name, message.id] = message

    def update(self, name: str, request: int, dataset: DatasetName = PLACES, **record: Any) -> None:
        requester = Requester(session=self.sessions[name])
        self.handle(
            events.RequestReceived(requester, SubscriberId(name), wire.Update(request, dataset, record or {"n": 1}))
        )

    def store(self, *refused: RefusedRecord) -> None:
        """Answer the oldest request."""
        self.handle(events.UpdatesStored(self.batches.pop(0).batch, list(refused)))

    def records(self) -> list[list[tuple[str, Any]]]:
        """(user, record) of each request without an answer."""
        return [[(user, msgspec.json.decode(record)) for user, record in batch.records] for batch in self.batches]

    def code(self, name: str, request: int) -> str:
        answer = self.answers[name, request]
        return answer.code if isinstance(answer, wire.Refused) else str(answer.__struct_config__.tag)


def test_update_is_sent_for_its_user_and_answered_when_stored() -> None:
    host = Host("ann")
    host.update("ann", 7, lat=1.5, lon=2.5)
    assert host.records() == [[("ann", {"lat": 1.5, "lon": 2.5})]] and ("ann", 7) not in host.answers
    host.store()
    assert host.code("ann", 7) == "updated"
    assert (host.core.updates.stored, host.core.updates.refused, host.core.updates.idle) == (1, 0, True)


def test_updates_that_arrive_during_a_request_share_the_next_one() -> None:
    host = Host("ann", "bob", "eve")
    for number, name in enumerate(host.sessions, 1):
        host.update(name, number, n=number)
    assert host.records() == [[("ann", {"n": 1})]], "one request at a time"
    host.store()
    assert host.records() == [[("bob", {"n": 2}), ("eve", {"n": 3})]]
    host.store()
    assert host.batches == [] and {host.code("bob", 2), host.code("eve", 3)} == {"updated"}


def test_newer_update_replaces_waiting_one_and_both_are_answered() -> None:
    host = Host("ann", "bob")
    host.update("bob", 1)
    for number in (1, 2, 3):
        host.update("ann", number, n=number)
    host.store()
    assert host.records() == [[("ann", {"n": 3})]]
    assert not any(("ann", number) in host.answers for number in (1, 2, 3))
    host.store()
    assert [host.code("ann", number) for number in (1, 2, 3)] == ["updated"] * 3


def test_update_in_flight_is_not_replaced() -> None:
    host = Host("ann")
    host.update("ann", 1, n=1)
    host.update("ann", 2, n=2)
    assert host.records() == [[("ann", {"n": 1})]]
    host.store()
    assert host.code("ann", 1) == "updated" and ("ann", 2) not in host.answers
    assert host.records() == [[("ann", {"n": 2})]]


def test_datasets_have_requests_of_their_own_under_one_spelling() -> None:
    host = Host("ann", "bob")
    host.update("ann", 1, PLACES)
    host.update("ann", 2, HOMES)
    host.update("bob", 1, DatasetName("PLACES"))
    assert [batch.dataset for batch in host.batches] == [PLACES, HOMES], "bob waits for ann's request"


def test_large_crowd_is_split_into_bounded_requests() -> None:
    names = [f"p{number}" for number in range(2 * RECORDS_AT_ONCE + 3)]
    host = Host(*names)
    for name in names:
        host.update(name, 1)
    sizes = []
    while host.batches:
        sizes.append(len(host.batches[0].records))
        host.store()
    assert sizes == [1, RECORDS_AT_ONCE, RECORDS_AT_ONCE, 2]
    assert all(host.code(name, 1) == "updated" for name in names)


def test_refused_record_does_not_fail_the_others() -> None:
    host = Host("ann", "bob", "eve")
    host.update("eve", 9)
    host.update("ann", 1, user_id="bob")
    host.update("bob", 2)
    host.store()
    host.store(RefusedRecord(0, Code.FORBIDDEN, "user_id must be 'ann'"))
    assert (host.code("ann", 1), host.code("bob", 2)) == ("forbidden", "updated")
    assert (host.core.updates.stored, host.core.updates.refused) == (2, 1)


def test_record_is_sent_for_the_session_whatever_user_it_names() -> None:
    host = Host("ann", "bob")
    host.update("ann", 1, user_id="bob", user="bob")
    [[(user, _)]] = host.records()
    assert user == "ann", "the data cluster compares the record with the user that the broker has verified"


def test_update_is_refused_when_the_data_cluster_does_not_answer() -> None:
    host = Host("ann", "bob")
    host.update("ann", 1)
    host.now_s += 6
    host.update("bob", 1)
    host.now_s += 5
    host.handle(events.Ticked())
    refused = host.answers["ann", 1]
    assert isinstance(refused, wire.Refused) and (refused.code, refused.retry_after_s) == ("not_ready", 2.0)
    assert ("bob", 1) not in host.answers, "this one is not late yet"
    host.store()
    assert host.records() == [[("bob", {"n": 1})]]
    host.now_s += 11
    host.handle(events.Ticked())
    host.store()
    assert host.code("bob", 1) == "not_ready" and host.core.updates.idle


def test_expired_update_that_still_waits_is_not_sent() -> None:
    host = Host("ann", "bob")
    host.update("ann", 1)
    host.update("bob", 1)
    host.now_s += 11
    host.handle(events.Ticked())
    host.store()
    assert host.batches == [] and host.code("bob", 1) == "not_ready" and host.core.updates.idle


def test_first_of_replaced_updates_expires_alone() -> None:
    host = Host("ann", "bob")
    host.update("bob", 1)
    host.update("ann", 1, n=1)
    host.now_s += 8
    host.update("ann", 2, n=2)
    host.now_s += 3
    host.handle(events.Ticked())
    assert host.code("ann", 1) == "not_ready" and ("ann", 2) not in host.answers
    host.store()
    assert host.records() == [[("ann", {"n": 2})]]


@pytest.mark.parametrize(
    ("code", "hint_s", "expected"),
    [
        (Code.NOT_READY, None, ("not_ready", 2.0)),
        (Code.BACKLOGGED, 9.0, ("backlogged", 9.0)),
        (Code.UNKNOWN_DATASET, None, ("unknown_dataset", None)),
    ],
)
def test_failed_request_refuses_its_updates_and_frees_the_dataset(
    code: Code, hint_s: float | None, expected: tuple[str, float | None]
) -> None:
    host = Host("ann", "bob")
    host.update("ann", 1)
    host.update("bob", 1)
    host.handle(events.UpdatesFailed(host.batches.pop().batch, code, "no", hint_s))
    refused = host.answers["ann", 1]
    assert isinstance(refused, wire.Refused) and (refused.code, refused.retry_after_s) == expected
    assert len(host.batches) == 1, "bob's update is sent"


def test_flooding_subscriber_is_refused_and_others_are_served() -> None:
    host = Host("ann", "bob")
    for number in range(1, 101):
        host.update("ann", number, DatasetName(f"D{number % 50}"))
    assert len(host.batches) == UNANSWERED_EACH < REQUESTS_AT_ONCE
    assert {host.code("ann", number) for number in range(UNANSWERED_EACH + 1, 101)} == {"backlogged"}
    host.update("bob", 1)
    assert host.records()[-1] == [("bob", {"n": 1})]
    while host.batches:
        host.store()
    host.update("ann", 200)
    assert len(host.batches) == 1, "ann may update again"


def test_requests_over_all_datasets_are_bounded_and_take_turns() -> None:
    names = [f"p{number}" for number in range(REQUESTS_AT_ONCE + 2)]
    host = Host(*names)
    for number, name in enumerate(names):
        host.update(name, 1, DatasetName(f"D{number}"))
    assert len(host.batches) == REQUESTS_AT_ONCE
    host.update(names[0], 2, DatasetName("D0"))
    host.store()
    assert host.batches[-1].dataset == f"D{REQUESTS_AT_ONCE}", "a waiting dataset comes before D0's next request"


def test_updates_over_all_subscribers_are_bounded() -> None:
    host = Host("ann", "bob", "eve", updates=2)
    for name in host.sessions:
        host.update(name, 1)
    assert host.code("eve", 1) == "backlogged"


@pytest.mark.parametrize(
    ("dataset", "record", "code"),
    [
        (PLACES, {"text": "x" * 5_000}, "too_large"),
        (PLACES, {"value": msgspec.msgpack.Ext(5, b"x")}, "bad_records"),
        (DatasetName("../tokens"), {"n": 1}, "unknown_dataset"),
    ],
)
def test_malformed_update_is_refused_without_a_request(dataset: DatasetName, record: Any, code: str) -> None:
    host = Host("ann")
    host.update("ann", 1, dataset, **record)
    assert host.code("ann", 1) == code and host.batches == [] and host.core.updates.idle
    assert host.core.updates.refused == 1


def test_rest_call_updates_without_a_session() -> None:
    host = Host()
    request = wire.Update(0, PLACES, {"lat": 1, "lon": 2})
    host.handle(events.RequestReceived(Requester(call=CallId(5)), SubscriberId("ann"), request))
    host.store()
    assert host.code("call", 0) == "updated"
    assert host.core.state.places == {} and host.core.idle, "the broker does not host ann"


def test_update_of_a_lost_session_is_stored() -> None:
    host = Host("ann")
    host.update("ann", 1)
    host.handle(events.SessionLost(host.sessions["ann"], "gone"))
    host.store()
    assert ("ann", 1) not in host.answers and host.core.idle


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ({"lat": 60.1, "lon": 24, "at": 5}, (60.1, 24.0)),
        ({"lat": -90, "lon": 180.0}, (-90.0, 180.0)),
        ({"lat": 90.1, "lon": 0}, None),
        ({"lat": 0, "lon": float("nan")}, None),
        ({"lat": "60", "lon": 24}, None),
        ({"lat": True, "lon": 24}, None),
        ({"lat": 60}, None),
    ],
)
def test_reported_position_is_kept_until_the_subscriber_leaves(
    record: dict[str, Any], place: tuple[float, float] | None
) -> None:
    host = Host("ann")
    host.update("ann", 1, **record)
    assert host.core.state.places == {}, "the data cluster may refuse the record"
    host.store()
    assert host.core.state.places == ({} if place is None else {"ann": place})
    host.handle(events.SessionLost(host.sessions["ann"], "gone"))
    assert host.core.state.places == {}


def test_position_stays_with_an_offline_subscriber_and_leaves_on_release() -> None:
    network = subscribed("ann")
    network.request("ann", wire.Update(9, PLACES, {"lat": 1, "lon": 2}))
    state = network.brokers[BrokerId("a")].state
    network.brokers[BrokerId("a")].handle(events.UpdatesStored(1, []), network.now_s)
    network.lose("ann")
    assert state.places == {"ann": (1.0, 2.0)}, "the broker still hosts ann's subscription"
    network.coordinator.send(BrokerId("a"), link.Release(SubscriberId("ann"), "m"))
    assert state.places == {}
