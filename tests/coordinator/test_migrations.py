"""The migration of one subscriber, step by step."""

from __future__ import annotations

from tests.coordinator.bench import ADA, B1, B2, crowded, frontend
from tocsin.coordinator.records import MigrationStep
from tocsin.model.ids import SubscriptionId
from tocsin.wire import link as wire

SUBSCRIPTION = SubscriptionId("ada")
"""The subscription that ada holds in `crowded`."""


def test_subscription_made_during_preparation_is_prepared_too() -> None:
    bench = crowded()
    bench.move("ada", B2)
    bench.send(B1, wire.Changed(2, ADA, added=[frontend("new")]))
    [prepare] = bench.sent(B2, wire.Prepare)
    assert {frontend.subscription for frontend in prepare.state.subscriptions} == {"ada", "new"}


def test_target_learns_of_the_last_unsubscription_during_hand_over() -> None:
    bench = crowded()
    bench.move("ada", B2)
    [prepare] = bench.sent(B2, wire.Prepare)
    bench.send(B2, wire.Prepared(prepare.migration))
    bench.send(B1, wire.Changed(2, ADA, removed=[SUBSCRIPTION]))
    [adopt] = bench.sent(B2, wire.Adopt)
    assert adopt.subscribers == [wire.SubscriberState(ADA, [])]


def test_hand_over_without_a_new_session_ends_at_the_source() -> None:
    bench = crowded()
    bench.move("ada", B2)
    [migration] = bench.registry.migrations.values()
    bench.send(B2, wire.Prepared(migration.id))
    assert migration.step is MigrationStep.HANDING_OVER
    bench.wait(25, B1, B2)
    assert not bench.registry.migrations and bench.home("ada") == B1
