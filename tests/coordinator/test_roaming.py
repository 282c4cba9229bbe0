"""Subscribers that travel get nearer brokers, and no others do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.coordinator.bench import ADA, B1, B2, Bench, frontend
from tocsin.coordinator.rules import CoordinatorRules
from tocsin.model.ids import SubscriptionId
from tocsin.model.plan import Urgency
from tocsin.model.snapshot import Place
from tocsin.policies.balance.settings import BalanceSettings, PlacementPolicy
from tocsin.wire import link as wire

HELSINKI, TAMPERE = (60.17, 24.94), (61.50, 23.76)
RULES = CoordinatorRules(roam_m=20_000.0)


def two_cities(rules: CoordinatorRules = RULES) -> Bench:
    """b1 in Helsinki, b2 in Tampere, 160 km apart; ada lives in Helsinki."""
    bench = Bench(rules)
    bench.register(B1, lat=HELSINKI[0], lon=HELSINKI[1])
    bench.register(B2, lat=TAMPERE[0], lon=TAMPERE[1])
    bench.place("ada", Place(*HELSINKI))
    bench.connect("ada", B1, "news")
    return bench


def travel(bench: Bench, *way: tuple[float, float]) -> None:
    for place in way:
        bench.send(B1, wire.LoadReport(0.0, 0.0, {SubscriptionId("news"): 10.0}, places={ADA: place}))
        bench.wait(1.0, B1, B2)


def test_travelling_subscriber_moves_to_the_nearer_broker() -> None:
    bench = two_cities()
    travel(bench, HELSINKI, (61.3, 23.9))
    [migration] = bench.registry.migrations.values()
    assert (migration.subscriber, migration.target, migration.urgency) == (ADA, B2, Urgency.LATENCY)
    assert "km nearer" in migration.reason


@pytest.mark.parametrize(
    ("rules", "place"),
    [
        (RULES, (60.25, 24.94)),
        (replace(RULES, roam_m=0.0), TAMPERE),
        (replace(RULES, placement=PlacementPolicy.ROUND_ROBIN), TAMPERE),
    ],
    ids=["short journey", "switched off", "placement ignores distance"],
)
def test_subscriber_stays_without_a_reason_to_move(rules: CoordinatorRules, place: tuple[float, float]) -> None:
    bench = two_cities(rules)
    travel(bench, HELSINKI, place)
    assert not bench.registry.migrations


def test_journey_is_judged_once() -> None:
    bench = two_cities()
    travel(bench, HELSINKI, (60.40, 24.94))
    assert not bench.registry.migrations and not bench.registry.roaming, "far from home, but no broker is nearer"
    assert bench.subscriber("ada").placed_at == Place(60.40, 24.94)


def test_full_broker_gets_no_roaming_subscriber() -> None:
    bench = two_cities()
    for name in ("bob", "eve", "joe"):
        bench.place(name, Place(*TAMPERE))
        bench.connect(name, B2, "loud")
    bench.send(B2, wire.LoadReport(0.0, 0.0, {SubscriptionId("loud"): 1_000.0}))
    travel(bench, HELSINKI, (61.3, 23.9))
    assert not bench.registry.migrations
    decision = bench.plan("roaming")
    assert not decision.plan.moves and "none has a nearer broker with room" in decision.plan.note


def test_subscriber_that_jumps_between_cities_moves_once_a_minute() -> None:
    bench = two_cities()
    travel(bench, HELSINKI)
    moves = 0
    for number in range(120):
        home = bench.home("ada")
        assert home is not None
        place = TAMPERE if number % 2 else HELSINKI
        bench.send(home, wire.LoadReport(0.0, 0.0, {}, places={ADA: place}))
        bench.wait(1.0, B1, B2)
        for migration in list(bench.registry.migrations.values()):
            moves += 1
            target, source = migration.target, migration.source
            bench.send(target, wire.SessionOpened(ADA, migration.id))
            bench.send(source, wire.Released(ADA, migration.id))
    assert 1 <= moves <= 3


def test_journey_during_a_migration_is_judged_afterwards() -> None:
    bench = two_cities()
    travel(bench, HELSINKI)
    bench.move("ada", B2)
    travel(bench, (61.3, 23.9))
    assert ADA in bench.registry.roaming, "not judged yet"


def test_place_of_a_broker_request_reaches_the_snapshot() -> None:
    bench = two_cities()
    before = bench.snapshot()
    bench.place("ada", Place(*TAMPERE))
    after = bench.snapshot()
    assert before.places_deg is not None and after.places_deg is not None
    assert after.places_deg[0].tolist() == list(TAMPERE) != before.places_deg[0].tolist()


def test_position_from_another_broker_is_ignored() -> None:
    bench = two_cities()
    bench.send(B2, wire.LoadReport(0.0, 0.0, {}, places={ADA: TAMPERE}))
    assert bench.subscriber("ada").place == Place(*HELSINKI)


def with_bob_and_eve(calm_per_s: float, *ada_also_holds: str) -> Bench:
    """ada's subscription has 10 bytes/s, bob's in Helsinki 40, eve's in Tampere `calm_per_s`."""
    bench = two_cities(replace(RULES, balance=BalanceSettings(shuffle="none")))
    bench.send(B1, wire.Changed(2, ADA, added=[frontend(name) for name in ada_also_holds]))
    for name, home, place, subscription in (("bob", B1, HELSINKI, "busy"), ("eve", B2, TAMPERE, "calm")):
        bench.place(name, Place(*place))
        bench.connect(name, home, subscription)
    bench.send(B1, wire.LoadReport(0.0, 0.0, {SubscriptionId("busy"): 40.0, SubscriptionId("calm"): calm_per_s}))
    bench.wait(6.0, B1, B2)  # modelled loads are as old as a report
    return bench


def test_unmeasured_subscription_of_a_traveller_counts_as_the_mean() -> None:
    """Alone, ada's 20 bytes/s fit beside eve's 62; with the mean of 27 bytes/s twice they exceed the ceiling of 124."""
    for more, moves in (((), True), (("unmeasured",), False)):
        bench = with_bob_and_eve(31.0, *more)
        travel(bench, HELSINKI, (61.3, 23.9))
        assert bool(bench.registry.migrations) is moves


@pytest.mark.parametrize("level", [1.0, 2.0])
def test_demand_of_a_traveller_has_the_level_of_the_loads(level: float) -> None:
    """100 bytes/s at each broker: ada's 20 bytes/s do not fit. When all traffic doubles, they still do not."""
    bench = with_bob_and_eve(50.0)
    bench.core.loads.level.factor = level
    travel(bench, HELSINKI, (61.3, 23.9))
    assert not bench.registry.migrations
