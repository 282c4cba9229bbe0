"""Initial placement [BAD §5.1]: who gets a newcomer."""

from __future__ import annotations

from collections import Counter

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId
from tocsin.model.snapshot import Place
from tocsin.policies.balance.placement import BrokerChoice, Newcomer, PlacementPolicy, distance_m, place

HELSINKI = Place(60.1699, 24.9384)
TAMPERE = Place(61.4978, 23.7610)
TURKU = Place(60.4518, 22.2666)


def brokers(**changes: BrokerChoice) -> list[BrokerChoice]:
    made = {
        "helsinki": BrokerChoice(BrokerId("helsinki"), place=HELSINKI, load_bytes_per_s=50.0),
        "tampere": BrokerChoice(BrokerId("tampere"), place=TAMPERE, load_bytes_per_s=20.0),
        "turku": BrokerChoice(BrokerId("turku"), place=TURKU, load_bytes_per_s=30.0, capacity=2.0),
    }
    return list((made | changes).values())


def test_distance_is_that_of_the_atlas() -> None:
    assert abs(distance_m(HELSINKI, TAMPERE) - 161_000) < 2_000


def test_nearest_goes_by_location() -> None:
    assert place(PlacementPolicy.NEAREST, Newcomer(Place(60.2, 25.0)), brokers()) == "helsinki"


def test_nearest_passes_over_a_broker_that_does_not_accept() -> None:
    closed = BrokerChoice(BrokerId("helsinki"), accepting=False, place=HELSINKI)
    assert place(PlacementPolicy.NEAREST, Newcomer(Place(60.2, 25.0)), brokers(helsinki=closed)) == "turku"


def test_nearest_prefers_latency_to_distance() -> None:
    here = Coordinate(error=0.1)
    far = Coordinate(vector=(0.2, *[0.0] * 7), error=0.1)
    choices = [
        BrokerChoice(BrokerId("near on the map"), place=HELSINKI, coordinate=far),
        BrokerChoice(BrokerId("near in time"), place=TAMPERE, coordinate=here),
    ]
    assert place(PlacementPolicy.NEAREST, Newcomer(HELSINKI, here), choices) == "near in time"


def test_nearest_takes_turns_when_nobody_knows_where_anybody_is() -> None:
    found = [place(PlacementPolicy.NEAREST, Newcomer(turn=turn), brokers()) for turn in range(3)]
    assert sorted(map(str, found)) == ["helsinki", "tampere", "turku"]


def test_round_robin_gives_everybody_the_same_number() -> None:
    found = Counter(place(PlacementPolicy.ROUND_ROBIN, Newcomer(turn=turn), brokers()) for turn in range(300))
    assert set(found.values()) == {100}


def test_random_follows_the_draw_and_never_leaves_the_list() -> None:
    found = [place(PlacementPolicy.RANDOM, Newcomer(draw=draw), brokers()) for draw in (0.0, 0.5, 1.0 - 2**-53)]
    assert found == ["helsinki", "tampere", "turku"]


def test_least_loaded_goes_by_utilisation() -> None:
    assert place(PlacementPolicy.LEAST_LOADED, Newcomer(), brokers()) == "turku"


def test_nobody_is_placed_where_nobody_accepts() -> None:
    closed = [BrokerChoice(BrokerId("b"), accepting=False)]
    assert all(place(policy, Newcomer(), closed) is None for policy in PlacementPolicy)
