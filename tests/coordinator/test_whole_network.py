"""Whatever breaks, in whatever order: each result once and in order, no subscription lost, and none that comes back."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.coordinator.whole_network import KINDS, Network
from tocsin.model.ids import SubscriberId


def step(network: Network, rng: random.Random, log: list[str]) -> None:
    broker, name = rng.choice(list(network.nodes)), rng.choice(list(network.applications))
    key, kind = rng.choice([*network.connections] or [None]), rng.choice(KINDS)
    some = {one: rng.randint(1, 3) for one in KINDS if rng.random() < 0.5}
    passed_s, long_s, fails = rng.choice((0.3, 0.5, 1.0)), rng.choice((6.0, 11.0)), rng.random() < 0.1

    def at_one(of: Callable[[tuple[SubscriberId, int]], None]) -> Callable[[], None]:
        return lambda: None if key is None else of(key)

    actions: list[tuple[int, str, Callable[[], object]]] = [
        (10, "announces", lambda: network.announce(broker)),
        (10, "orders", lambda: network.place_order(broker)),
        (12, "fetches", lambda: network.answer_fetch(broker, fails)),
        (14, "is heard", lambda: network.hear(broker)),
        (14, "obeys", lambda: network.obey(broker)),
        (4, "drains", lambda: network.drain(broker)),
        (15, "upwards", at_one(network.upwards)),
        (15, "downwards", at_one(network.downwards)),
        (2, "is blocked", at_one(network.block)),
        (6, "is located", network.locate),
        (5, "executes", lambda: network.cluster.execute(some)),
        (4, "time", lambda: network.pass_time(passed_s)),
        (1, "long time", lambda: network.pass_time(long_s)),
        (2, "everything", network.deliver_all),
        (4, "takes", lambda: network.take(name)),
        (2, "subscribes", lambda: network.subscribe(name, kind)),
        (2, "unsubscribes", lambda: network.unsubscribe(name, kind)),
        (3, "moves", lambda: network.move(name, broker)),
        (6, "connects", lambda: network.connect(broker)),
        (1, "connection breaks", at_one(network.break_connection)),
        (1, "link breaks", lambda: network.cut(broker)),
        (1, "broker dies", lambda: network.crash(broker)),
        (1, "coordinator dies", network.start_coordinator),
        (1, "coordinator dies before storing", lambda: network.hear(broker, "before storing")),
        (1, "coordinator dies before telling", lambda: network.hear(broker, "before telling")),
    ]
    [(_, what, action)] = rng.choices(actions, [weight for weight, _, _ in actions])
    log.append(f"{network.now_s:.1f} {what} {broker} {name} {key} {kind}")
    action()


@pytest.mark.parametrize("seed", range(120))
def test_every_result_comes_once_and_no_subscription_is_lost_or_comes_back(seed: int) -> None:
    rng, log = random.Random(seed), list[str]()
    network = Network(rng.random, queue_bytes=rng.choice((300, 100_000)))
    try:
        for _ in range(400):
            step(network, rng, log)
        network.settle(60)
        network.cluster.execute(dict.fromkeys(KINDS, 1))
        network.settle(30)
        network.check()
    except AssertionError as error:
        error.add_note("\n".join(log[-40:]))
        raise
