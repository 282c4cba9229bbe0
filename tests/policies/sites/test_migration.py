"""Migration from the notifications to the end of BUSY, for any behaviour of clients and brokers."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.migration import (
    BrokerLost,
    ClientConnected,
    ClientDrained,
    ClientGone,
    Ending,
    EnterBusy,
    Event,
    LeaveBusy,
    MigrationCode,
    MigrationRejection,
    NotifyClient,
    OffloadDeadlinePassed,
    OffloadEnded,
    OffloadMigrations,
    OffloadOrdered,
)
from tocsin.policies.sites.types import NO_LOAD, Offload, SiteId, SiteMove
from tocsin.policies.topics.types import TopicName

T = TopicName("t")
A, B, C = BrokerId("a"), BrokerId("b"), BrokerId("c")
S1, S2 = SubscriberId("s1"), SubscriberId("s2")


def offload(source: BrokerId = A, target: BrokerId = B, clients: tuple[SubscriberId, ...] = (S1, S2)) -> Offload:
    return Offload(source, (SiteMove(T, clients, source, target, SiteId("x"), NO_LOAD),), "test")


def started() -> OffloadMigrations:
    migrations = OffloadMigrations(timeout_s=30.0)
    migrations.handle(OffloadOrdered(offload()), 0.0)
    return migrations


def test_ordered_offload_makes_brokers_busy_and_notifies_every_client() -> None:
    migrations = OffloadMigrations()
    effects = migrations.handle(OffloadOrdered(offload()), 0.0)
    assert effects == [EnterBusy((A, B)), NotifyClient(S1, T, A, B), NotifyClient(S2, T, A, B)]
    assert migrations.busy == {A, B}


def test_client_has_moved_when_connected_and_drained() -> None:
    migrations = started()
    assert migrations.handle(ClientConnected(S1, T, B), 1.0) == []
    assert migrations.handle(ClientDrained(S2, T, A), 1.0) == [], "drained first, connected later"
    assert migrations.handle(ClientDrained(S1, T, A), 2.0) == []
    assert migrations.handle(ClientDrained(S1, T, A), 2.0) == [], "a repeated confirmation"
    ended, left = migrations.handle(ClientConnected(S2, T, B), 3.0)
    assert ended == OffloadEnded(offload(), Ending.COMPLETE, ((S1, T), (S2, T)), ())
    assert left == LeaveBusy((A, B))
    assert migrations.deadline_s() is None


def test_time_out_ends_the_offload_and_reports_clients_that_stayed() -> None:
    migrations = started()
    migrations.handle(ClientConnected(S1, T, B), 1.0)
    assert migrations.deadline_s() == 30.0
    assert migrations.handle(OffloadDeadlinePassed(), 29.0) == []
    ended, left = migrations.handle(OffloadDeadlinePassed(), 30.0)
    assert ended == OffloadEnded(offload(), Ending.TIMED_OUT, ((S1, T),), ((S2, T),))
    assert left == LeaveBusy((A, B))
    assert migrations.busy == frozenset()


def test_offload_ends_without_clients_that_left_or_a_lost_broker() -> None:
    migrations = started()
    migrations.handle(ClientGone(S1, T), 1.0)
    ended, _ = migrations.handle(ClientGone(S2, T), 1.0)
    assert isinstance(ended, OffloadEnded)
    assert ended.moved == ended.stayed == ()
    migrations = started()
    ended, _ = migrations.handle(BrokerLost(B), 1.0)
    assert isinstance(ended, OffloadEnded)
    assert ended.ending is Ending.BROKER_LOST
    assert migrations.busy == frozenset()


def test_busy_broker_and_unknown_client_are_rejected() -> None:
    migrations = started()
    for event, code in (
        (OffloadOrdered(offload(B, C)), MigrationCode.BUSY),
        (OffloadOrdered(Offload(C, (), "empty")), MigrationCode.NOTHING_TO_MOVE),
        (ClientConnected(SubscriberId("stranger"), T, B), MigrationCode.UNKNOWN_CLIENT),
    ):
        (effect,) = migrations.handle(event, 1.0)
        assert isinstance(effect, MigrationRejection)
        assert effect.code is code
    assert migrations.busy == {A, B}


def test_late_confirmation_of_a_timed_out_offload_does_not_end_the_next() -> None:
    migrations = started()
    migrations.handle(ClientConnected(S1, T, B), 1.0)
    migrations.handle(OffloadDeadlinePassed(), 30.0)
    migrations.handle(OffloadOrdered(offload(B, C, (S1,))), 31.0)
    migrations.handle(ClientConnected(S1, T, C), 32.0)
    (late,) = migrations.handle(ClientDrained(S1, T, A), 33.0)
    assert isinstance(late, MigrationRejection)
    assert migrations.busy == {B, C}, "the queue at b is not empty yet"
    assert migrations.handle(ClientDrained(S1, T, B), 34.0)[-1] == LeaveBusy((B, C))


clients = st.sampled_from([SubscriberId(f"s{n}") for n in range(4)])
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        lambda client, target: ClientConnected(client, T, target),
        clients,
        st.sampled_from([BrokerId("d"), BrokerId("e")]),
    ),
    st.builds(lambda client, source: ClientDrained(client, T, source), clients, st.sampled_from([A, B, C])),
    st.builds(lambda client: ClientGone(client, T), clients),
    st.builds(BrokerLost, st.sampled_from([A, B, C])),
    st.just(OffloadDeadlinePassed()),
    st.builds(
        lambda source, target, moving: OffloadOrdered(offload(source, target, tuple(sorted(moving)))),
        st.sampled_from([A, B, C]),
        st.sampled_from([BrokerId("d"), BrokerId("e")]),
        st.sets(clients),
    ),
)


@settings(max_examples=200)
@given(st.lists(st.tuples(events, st.integers(0, 12)), max_size=40))
def test_brokers_always_leave_busy_and_every_client_is_accounted_for(steps: list[tuple[Event, int]]) -> None:
    migrations = OffloadMigrations(timeout_s=30.0)
    now_s = 0.0
    entered: list[BrokerId] = []
    left: list[BrokerId] = []
    notified, accounted, gone = 0, 0, 0
    for event, wait_s in [*steps, (OffloadDeadlinePassed(), 30)]:
        now_s += wait_s
        before = migrations.busy
        if isinstance(event, ClientGone):
            gone += 1
        for effect in migrations.handle(event, now_s):
            match effect:
                case EnterBusy(brokers):
                    assert not set(brokers) & before
                    entered += brokers
                case LeaveBusy(brokers):
                    left += brokers
                case NotifyClient():
                    notified += 1
                case OffloadEnded(_, _, moved, stayed):
                    accounted += len(moved) + len(stayed)
        assert len(entered) - len(left) == len(migrations.busy)
        assert (migrations.deadline_s() or now_s) <= now_s + 30.0
    assert migrations.busy == frozenset()
    assert sorted(entered) == sorted(left)
    assert notified - gone <= accounted <= notified


def test_confirmations_of_many_clients_take_time_in_proportion() -> None:
    count = 20_000
    clients = tuple(SubscriberId(f"s{number}") for number in range(count))
    migrations = OffloadMigrations()
    migrations.handle(OffloadOrdered(offload(clients=clients)), 0.0)
    began_s = time.process_time()
    for client in clients:
        assert migrations.handle(ClientConnected(client, T, B), 1.0) == []
    ended = [effect for client in clients for effect in migrations.handle(ClientDrained(client, T, A), 2.0)]
    assert time.process_time() - began_s < 3.0, "all of them looked at for each takes ten times as long"
    assert isinstance(ended[0], OffloadEnded) and len(ended[0].moved) == count
