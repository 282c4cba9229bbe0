"""Timelines of the city's people: logins and subscriptions as in the paper, logouts and returns of our own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tocsin.sim.city.interactions import LAST_S, CityPerson, Login, Logout, Subscribe, Unsubscribe, people_of
from tocsin.sim.city.streets import built_in
from tocsin.sim.city.subscriptions import named_places

PLACES = named_places(built_in(), 7)


def people(seed: int = 7, pace: float = 1.0) -> list[CityPerson]:
    return people_of(400, seed, PLACES, pace)


def test_people_log_in_for_four_minutes_then_subscribe_for_four() -> None:
    assert all(0 <= person.login_s <= 240 for person in people())
    first = [subscribe.at_s for person in people() for subscribe in person.subscribes[: len(person.subscriptions)]]
    assert min(first) >= 240 and max(first) <= 480 and np.mean(first) == pytest.approx(360, abs=10)


@pytest.mark.parametrize("seed", range(5))
def test_every_interaction_follows_from_the_ones_before_it(seed: int) -> None:
    for person in people(seed):
        online, held = False, set()
        for earlier, later in itertools.pairwise(person.timeline):
            assert earlier.at_s <= later.at_s
        for interaction in person.timeline:
            match interaction:
                case Login():
                    assert not online
                    online = True
                case Logout():
                    assert online
                    online = False
                case Subscribe(_, subscription):
                    assert online and subscription not in held and subscription.person == person.name
                    held.add(subscription)
                case Unsubscribe(_, subscription):
                    assert online
                    held.remove(subscription)
        assert online, "the audit needs all people at the end"
        assert person.timeline[-1].at_s <= LAST_S


def test_quarter_of_the_people_log_out_for_minutes_and_some_twice() -> None:
    leaving = [person for person in people() if person.logs_out]
    counts = [sum(isinstance(interaction, Logout) for interaction in person.timeline) for person in leaving]
    assert len(leaving) == 100 and sorted(set(counts)) == [1, 2] and counts.count(2) == 33
    for person in leaving:
        logins = [interaction.at_s for interaction in person.timeline if isinstance(interaction, Login)][1:]
        logouts = [interaction.at_s for interaction in person.timeline if isinstance(interaction, Logout)]
        assert all(120 <= login_s - logout_s <= 300 for logout_s, login_s in zip(logouts, logins, strict=True))
        assert min(logouts) > 480, "people log out after they subscribed"


def test_some_people_unsubscribe_and_half_of_them_return() -> None:
    removed = [
        (person, interaction)
        for person in people()
        for interaction in person.timeline
        if isinstance(interaction, Unsubscribe)
    ]
    returning = [person for person, gone in removed if any(s.at_s > gone.at_s for s in person.subscribes)]
    assert 50 < len(removed) < 110 and 0.3 < len(returning) / len(removed) < 0.7
    for person in returning:
        assert person.subscribes[-1].subscription in {s.subscription for s in person.subscribes[:-1]}, "the same values"


def test_pace_moves_every_interaction_closer_by_the_same_factor() -> None:
    for slow, fast in zip(people(), people(pace=0.1), strict=True):
        assert [type(interaction) for interaction in slow.timeline] == [type(made) for made in fast.timeline]
        assert [made.at_s for made in fast.timeline] == pytest.approx([made.at_s / 10 for made in slow.timeline])


def test_logouts_do_not_change_logins_or_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = people()
    monkeypatch.setattr("tocsin.sim.city.interactions.AWAY_SHARE", 0.0)
    monkeypatch.setattr("tocsin.sim.city.interactions.UNSUBSCRIBE_SHARE", 0.0)
    for busy, quiet in zip(before, people(), strict=True):
        assert busy.login_s == quiet.login_s
        assert busy.subscribes[: len(quiet.subscribes)] == quiet.subscribes
        assert len(quiet.timeline) == 1 + len(quiet.subscribes)
