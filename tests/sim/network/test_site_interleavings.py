"""A site with random delays and faults: receivers at edges learn of every loss, whatever fails or moves."""

from __future__ import annotations

import pytest

from tests.sim.network.topic_interleaving import TOPICS, Interleaving
from tocsin.client.topic_events import TopicGap
from tocsin.model.ids import BrokerId
from tocsin.model.topic_persistence import Persistence
from tocsin.wire.site_link import Role

HEAD, EDGES = "h0", ["e1", "e2"]
ROLES = {HEAD: Role.HEAD} | dict.fromkeys(EDGES, Role.EDGE)


def a_site(seed: int, persistence: Persistence | None = None, recent_bytes: int | None = None) -> Interleaving:
    return Interleaving(seed, persistence, [HEAD, *EDGES], roles=ROLES, recent_bytes=recent_bytes)


def checked(interleaving: Interleaving) -> None:
    interleaving.settle()
    try:
        interleaving.check()
    except (AssertionError, KeyError) as error:
        raise AssertionError("\n".join([repr(error), *interleaving.log[-80:]])) from error


def disturb(interleaving: Interleaving, steps: int) -> None:
    network, rng = interleaving.network, interleaving.rng

    def redirect() -> None:
        source, target = (BrokerId(str(name)) for name in rng.permutation(EDGES))
        network.redirect(TOPICS[int(rng.integers(2))], source, target)

    for _ in range(steps):
        interleaving.step([(6, "redirect", redirect)])


def gaps(interleaving: Interleaving) -> list[TopicGap]:
    items = [item for subscriber in interleaving.subscribers for topic in subscriber.items.values() for item in topic]
    return [item for item in items if isinstance(item, TopicGap)]


@pytest.mark.parametrize("seed", range(30))
def test_site_survives_faults_without_silent_loss(seed: int) -> None:
    interleaving = a_site(seed)
    disturb(interleaving, 80)
    checked(interleaving)


@pytest.mark.parametrize("seed", range(15))
def test_persistent_topics_of_a_site_survive_faults_without_any_gap(seed: int) -> None:
    interleaving = a_site(seed, Persistence(3, 2))
    disturb(interleaving, 60)
    checked(interleaving)
    assert not gaps(interleaving)


def test_relays_return_to_the_home_when_its_move_is_cancelled() -> None:
    """Both edges followed `moved` to an edge that did not become the home. Each took the other, or itself, for it."""
    interleaving = a_site(1008, Persistence(3, 2))
    disturb(interleaving, 80)
    checked(interleaving)
    assert not gaps(interleaving)


@pytest.mark.parametrize("seed", range(10))
def test_redirects_and_delays_alone_make_no_gap(seed: int) -> None:
    interleaving = a_site(seed, recent_bytes=100_000)
    network = interleaving.network
    interleaving.run(10.0)
    for number in range(120):
        interleaving.publish(interleaving.publishers[number % 2], TOPICS[0])
        if number % 8 == 0:
            source, target = (BrokerId(str(name)) for name in interleaving.rng.permutation(EDGES))
            network.redirect(TOPICS[0], source, target)
        interleaving.run(float(interleaving.rng.exponential(0.05)))
    checked(interleaving)
    assert not gaps(interleaving)


def test_edges_relay_and_the_head_has_no_other_receivers() -> None:
    interleaving = a_site(1)
    interleaving.network.transport.delay_s = lambda usual_s: usual_s
    interleaving.run(10.0)
    interleaving.publish(interleaving.publishers[0], TOPICS[0])
    interleaving.run(1.0)
    brokers = interleaving.network.brokers
    head = brokers[BrokerId(HEAD)].core.state
    assert {head.connections[identity].user for identity in head.topics[TOPICS[0]].live} <= {"relay-e1", "relay-e2"}
    relayed = [brokers[BrokerId(edge)].core.relaying.topics.get(TOPICS[0]) for edge in EDGES]
    assert sum(len(topic.live) for topic in relayed if topic is not None) == 2
