"""Changes that brokers report: which count, before, during and after a migration."""

from __future__ import annotations

from tests.coordinator.bench import ADA, B1, B2, Bench, crowded, frontend
from tocsin.coordinator.events import UserDeleted
from tocsin.coordinator.records import MigrationStep
from tocsin.model.ids import SubscriberId, SubscriptionId
from tocsin.wire import link as wire

SUBSCRIPTION = SubscriptionId("ada")
"""The subscription that ada holds in `crowded`."""


def test_acknowledged_cursors_only_advance() -> None:
    bench = crowded()
    for number, cursor in enumerate(("1-7", "1-3", "nonsense", "1-9", "0-99")):
        bench.send(B1, wire.Changed(number, ADA, acked={SUBSCRIPTION: cursor}))
    assert bench.subscriber("ada").subscriptions[SUBSCRIPTION].cursor == "1-9"


def test_removal_counts_only_from_the_home_broker() -> None:
    bench = crowded()
    bench.send(B2, wire.Changed(1, ADA, removed=[SUBSCRIPTION]))
    assert SUBSCRIPTION in bench.subscriber("ada").subscriptions
    bench.send(B1, wire.Changed(2, ADA, removed=[SUBSCRIPTION]))
    assert not bench.subscriber("ada").subscriptions


def test_deleted_user_is_not_created_again_by_a_late_report() -> None:
    bench = crowded()
    bench.kill(B1, B2)
    assert bench.ask(lambda ask: UserDeleted(ask, ADA)) is True
    bench.send(B2, wire.Released(ADA))
    assert ADA not in bench.registry.subscribers
    bench.register(B1, hosting=[ADA])
    bench.send(B1, wire.Changed(2, ADA, added=[frontend("new")], acked={SUBSCRIPTION: "1-7"}))
    assert ADA not in bench.registry.subscribers
    assert bench.sent(B1, wire.FromCoordinatorMessage) == [wire.Stored(2)], "b1 need not repeat it"
    bench.place("ada")
    bench.send(B1, wire.Changed(3, ADA, added=[frontend("new")]))
    assert SubscriptionId("new") in bench.subscriber("ada").subscriptions, "the user has registered again"


def test_report_without_additions_creates_no_user() -> None:
    bench = crowded()
    una, ida = SubscriberId("una"), SubscriberId("ida")
    bench.send(B1, wire.Changed(2, una, removed=[SubscriptionId("new")], webhook_removed=True))
    bench.send(B1, wire.Changed(3, ida, added=[frontend("new")]))
    assert una not in bench.registry.subscribers and ida in bench.registry.subscribers


def moved_to_b2() -> Bench:
    """Ada has just moved to b2, and b1 has to release her."""
    bench = crowded()
    bench.move("ada", B2)
    [migration] = bench.registry.migrations.values()
    bench.send(B2, wire.Prepared(migration.id))
    bench.send(B2, wire.SessionOpened(ADA, migration.id))
    assert migration.step is MigrationStep.RELEASING and bench.home("ada") == B2
    return bench


def test_unsubscription_just_before_a_move_is_kept_after_it() -> None:
    bench = moved_to_b2()
    bench.send(B1, wire.Changed(2, ADA, removed=[SUBSCRIPTION]))
    assert not bench.subscriber("ada").subscriptions
    [adopt] = bench.sent(B2, wire.Adopt)
    assert adopt.subscribers == [wire.SubscriberState(ADA, [])]


def test_old_removal_spares_a_subscription_renewed_after_the_move() -> None:
    """The source sent the removal into a broken link and repeats it when it is back."""
    bench = moved_to_b2()
    bench.send(B2, wire.Changed(1, ADA, added=[frontend("ada")]))
    bench.send(B1, wire.Changed(2, ADA, removed=[SUBSCRIPTION]))
    assert SUBSCRIPTION in bench.subscriber("ada").subscriptions
    bench.send(B2, wire.Changed(2, ADA, removed=[SUBSCRIPTION]))
    assert not bench.subscriber("ada").subscriptions
