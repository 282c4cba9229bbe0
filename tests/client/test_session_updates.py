"""A session and the subscriber's own records: an update is repeated until stored, and never replaces a newer one."""

from __future__ import annotations

from tests.client.broker_world import World, served_world
from tocsin.client import events
from tocsin.client.session import SubscriberSession
from tocsin.model.ids import DatasetName
from tocsin.wire import session as wire


def update_requested(ticket: int, dataset: str = "Places") -> events.UpdateRequested:
    return events.UpdateRequested(ticket, DatasetName(dataset), {"n": ticket})


def sent_updates(world: World) -> list[tuple[int, str, int]]:
    """(request, dataset, n) of the updates that were sent and no broker has read."""
    updates = [message for _, message in world.sent if isinstance(message, wire.Update)]
    world.sent.clear()
    return [(update.id, update.dataset, update.record["n"]) for update in updates]


def answer_update(world: World, message: wire.Updated | wire.Refused) -> None:
    world.handle(events.MessageReceived(max(world.connections), message))


def test_update_is_sent_at_once_and_reported_when_stored() -> None:
    world = served_world()
    world.handle(update_requested(1))
    [(request, dataset, n)] = sent_updates(world)
    assert (dataset, n) == ("Places", 1) and not world.updated
    answer_update(world, wire.Updated(request))
    answer_update(world, wire.Updated(request))
    assert world.updated == [1] and not world.session.subscriptions.updating


def test_retry_of_an_older_update_does_not_follow_a_newer_one() -> None:
    world = served_world()
    world.handle(update_requested(1))
    [(first, _, _)] = sent_updates(world)
    answer_update(world, wire.Refused(first, "not_ready", "busy", 2.0))
    world.handle(update_requested(2, "places"))
    [(second, _, _)] = sent_updates(world)
    answer_update(world, wire.Updated(second))
    assert world.updated == [1, 2], "the newer record stands for both"
    world.now_s += 5.0
    world.handle(events.TimePassed())
    assert sent_updates(world) == []


def test_update_without_a_session_waits_for_the_login() -> None:
    world = World(SubscriberSession(lambda: 0.5))
    world.handle(events.Started())
    world.handle(update_requested(1))
    assert not world.sent
    world.coordinator_answers(0)
    world.connection_opens(0)
    world.request_arrives(1)
    world.message_arrives(0)
    assert [n for _, _, n in sent_updates(world)] == [1]


def test_unanswered_update_is_sent_again_after_a_reconnect() -> None:
    world = served_world()
    world.handle(update_requested(1))
    world.handle(update_requested(2, "Homes"))
    assert len(sent_updates(world)) == 2
    world.subscriber_reconnects(0)
    world.message_arrives(0)
    again = sent_updates(world)
    assert [(dataset, n) for _, dataset, n in again] == [("Places", 1), ("Homes", 2)]
    for request, _, _ in again:
        answer_update(world, wire.Updated(request))
    assert world.updated == [1, 2]


def test_repeated_update_carries_the_newest_record_of_its_dataset() -> None:
    world = served_world()
    for ticket in (1, 2):
        world.handle(update_requested(ticket))
    [(first, _, _), _] = sent_updates(world)
    answer_update(world, wire.Refused(first, "not_ready", "later", 3.0))
    assert world.refused == {} and sent_updates(world) == []
    world.now_s += 3.0
    world.handle(events.TimePassed())
    [(again, _, n)] = sent_updates(world)
    assert n == 2, "the older record must not overwrite the newer one"
    answer_update(world, wire.Updated(again))
    assert world.updated == [1]


def test_update_refused_for_good_reports_its_code() -> None:
    world = served_world()
    world.handle(update_requested(1))
    [(request, _, _)] = sent_updates(world)
    answer_update(world, wire.Refused(request, "forbidden", "not your record"))
    assert world.refused == {1: "forbidden"} and not world.session.subscriptions.updating
