"""In any order of events at least one broker holds every subscriber, and in the end exactly one does.

The walks break links (losing their messages), crash brokers and the coordinator (before and after it has stored),
pause, migrate and drain. Subscribers connect, leave and ignore announced moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.coordinator.coordinator_world import World

Choose = Callable[[int], int]


def step(world: World, choose: Choose) -> None:
    brokers, clients = list(world.brokers), list(world.clients)
    broker, other = brokers[choose(len(brokers))], brokers[choose(len(brokers))]
    name = clients[choose(len(clients))]
    actions: list[tuple[int, str, Callable[[], object]]] = [
        (12, "sends", lambda: world.send_next(broker)),
        (12, "receives", lambda: world.receive_next(broker)),
        (4, "delivers", world.deliver_all),
        (3, "second", world.second),
        (2, "silence", lambda: world.pass_time(7.0)),
        (1, "long silence", lambda: world.pass_time(25.0)),
        (2, "cut", lambda: world.cut(broker)),
        (4, "connect", lambda: world.connect(broker)),
        (1, "crash", lambda: world.crash(broker)),
        (1, "coordinator dies", world.start_coordinator),
        (1, "dies before storing", lambda: world.send_next(broker, "before storing")),
        (1, "dies before sending", lambda: world.send_next(broker, "before sending")),
        (4, "move", lambda: world.move(name, other)),
        (3, "log in", lambda: world.log_in(name)),
        (2, "request a broker", lambda: world.request_broker(name)),
        (1, "leave", lambda: world.leave(name)),
        (2, "subscribe", lambda: world.subscribe(name)),
        (1, "ack", lambda: world.acknowledge(name, choose(100))),
        (1, "drain", lambda: world.drain(broker, True)),
        (1, "no drain", lambda: world.drain(broker, False)),
    ]
    at = choose(sum(weight for weight, _, _ in actions))
    for weight, action_name, action in actions:
        if at < weight:
            world.log.append(f"{action_name} {broker} {other} {name}")
            action()
            break
        at -= weight
    world.check()


def walk(choose: Choose, steps: int) -> None:
    world = World()
    try:
        for _ in range(steps):
            step(world, choose)
        world.settle()
        world.check_settled()
    except AssertionError as error:
        error.add_note("\n".join(world.log[-40:]))
        raise


@pytest.mark.parametrize("seed", range(60))
def test_a_broker_holds_every_subscriber_on_long_walks(seed: int) -> None:
    rng = random.Random(seed)
    walk(rng.randrange, 150)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 1 << 12), max_size=160))
def test_a_broker_holds_every_subscriber_on_short_walks(choices: Sequence[int]) -> None:
    left = list(choices)
    walk(lambda below: left.pop() % below if left else 0, len(choices) // 4)
