"""Initial placement [BAD §5.1]: the broker of a new subscriber."""

from __future__ import annotations

from collections import Counter

from tocsin.coords.coordinate import Coordinate
from tocsin.model.ids import BrokerId
from tocsin.model.snapshot import Place
from tocsin.policies.balance.placement import BrokerChoice, Newcomer, distance_m, place
from tocsin.policies.balance.settings import PlacementPolicy

HELSINKI = Place(60.1699, 24.9384)
TAMPERE = Place(61.4978, 23.7610)
TURKU = Place(60.4518, 22.2666)


def brokers(**changes: BrokerChoice) -> list[BrokerChoice]:
    choices = {
        "helsinki": BrokerChoice(BrokerId("helsinki"), place=HELSINKI, load_bytes_per_s=50.0),
        "tampere": BrokerChoice(BrokerId("tampere"), place=TAMPERE, load_bytes_per_s=20.0),
        "turku": BrokerChoice(BrokerId("turku"), place=TURKU, load_bytes_per_s=30.0, capacity=2.0),
    }
    return list((choices | changes).values())


def test_distance_agrees_with_the_map() -> None:
    assert abs(distance_m(HELSINKI, TAMPERE) - 161_000) < 2_000


def test_nearest_chooses_by_location() -> None:
    assert place(PlacementPolicy.NEAREST, Newcomer(Place(60.2, 25.0)), brokers()) == "helsinki"


def test_nearest_skips_broker_that_does_not_accept() -> None:
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


def test_nearest_without_locations_is_round_robin() -> None:
    chosen = [place(PlacementPolicy.NEAREST, Newcomer(turn=turn), brokers()) for turn in range(3)]
    assert sorted(map(str, chosen)) == ["helsinki", "tampere", "turku"]


def test_round_robin_gives_each_broker_the_same_number() -> None:
    counts = Counter(place(PlacementPolicy.ROUND_ROBIN, Newcomer(turn=turn), brokers()) for turn in range(300))
    assert set(counts.values()) == {100}


def test_random_follows_the_draw() -> None:
    chosen = [place(PlacementPolicy.RANDOM, Newcomer(draw=draw), brokers()) for draw in (0.0, 0.5, 1.0 - 2**-53)]
    assert chosen == ["helsinki", "tampere", "turku"]


def test_least_loaded_chooses_by_utilisation() -> None:
    assert place(PlacementPolicy.LEAST_LOADED, Newcomer(), brokers()) == "turku"


def test_placement_is_none_when_no_broker_accepts() -> None:
    closed = [BrokerChoice(BrokerId("b"), accepting=False)]
    assert all(place(policy, Newcomer(), closed) is None for policy in PlacementPolicy)
