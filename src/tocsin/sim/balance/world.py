"""A world drawn from a scenario and a seed: places, interests, rates and times. All arrays, no events.

The same scenario and seed give the same world for every policy. A run draws its bursts, results and churn from other
random streams. Driven by `run`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.model.snapshot import Flags, Floats, Ints, Place
from tocsin.policies.balance.load import Longs
from tocsin.sim.balance.scenario import Scenario, SurgingChannel

_SPACING_DEG = 1.0
"""Distance between neighbouring brokers. They are on a grid at the equator, where degrees of both kinds are equal."""

Stream = Callable[[str], np.random.Generator]


@dataclass(frozen=True, slots=True)
class BalanceWorld:
    scenario: Scenario
    brokers: tuple[BrokerId, ...]
    broker_places: tuple[Place, ...]
    capacity: Floats
    subscribers: tuple[SubscriberId, ...]
    places_deg: Floats
    """Latitude and longitude per subscriber."""
    neighbourhood: Ints
    join_s: Floats
    start: Longs
    wants: Ints
    """Subscriber i subscribes to `wants[start[i]:start[i + 1]]`."""
    subscribe_s: Floats
    """The time of the subscription, per entry of `wants`."""
    channel_of: Ints
    """The channel of each BE subscription."""
    rate: Floats
    """The true λ without bursts, in bytes/s. Policies see measured rates."""

    def struck_by(self, surge: SurgingChannel) -> Flags:
        """Per BE subscription: True if this surge makes its results larger. A disaster strikes one part of the map."""
        struck: Flags = self.channel_of == surge.channel
        groups = self.scenario.subscribers.neighbourhoods
        if surge.neighbourhoods and groups:
            people = np.maximum(1, np.bincount(self.neighbourhood, minlength=groups))[:, None]
            sums = [np.bincount(self.neighbourhood, degrees, groups) for degrees in self.places_deg.T]
            centres = np.stack(sums, axis=1) / people
            nearest = np.argsort(np.hypot(*(centres - centres[0]).T), kind="stable")[: surge.neighbourhoods]
            struck &= np.isin(np.arange(len(self.rate)) % groups, nearest)
        return struck


def draw(scenario: Scenario, stream: Stream) -> BalanceWorld:
    brokers, people, channels = scenario.brokers, scenario.subscribers, scenario.channels
    n, q = people.count, len(channels.periods_s) * channels.subscriptions
    at_deg = broker_places(brokers.count)
    places_deg, hood = _places(scenario, at_deg, stream("places"))
    start, wants = _interests(scenario, hood, stream("interests"))
    times = stream("times")
    join_s = times.uniform(0.0, people.join_within_s, n)
    asked_s = times.uniform(people.subscribe_from_s, people.subscribe_until_s, len(wants))
    width = max(4, len(str(n)))
    return BalanceWorld(
        scenario=scenario,
        brokers=tuple(BrokerId(f"broker-{j:03}") for j in range(brokers.count)),
        broker_places=tuple(Place(float(lat), float(lon)) for lat, lon in at_deg),
        capacity=np.resize(np.array(brokers.capacity or (1.0,), dtype=np.float64), brokers.count),
        subscribers=tuple(SubscriberId(f"subscriber-{i:0{width}}") for i in range(n)),
        places_deg=places_deg,
        neighbourhood=hood,
        join_s=join_s,
        start=start,
        wants=wants,
        subscribe_s=np.maximum(asked_s, np.repeat(join_s, np.diff(start))),
        channel_of=np.repeat(np.arange(len(channels.periods_s)), channels.subscriptions).astype(np.int32),
        rate=_rates(scenario, q, stream("rates")),
    )


def broker_places(count: int) -> Floats:
    side = int(np.ceil(np.sqrt(count)))
    grid = np.stack(np.divmod(np.arange(count), side), axis=1)
    return (grid - side / 2.0) * _SPACING_DEG


def _places(scenario: Scenario, at_deg: Floats, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """Place and neighbourhood (-1: none) of each subscriber: near a broker, or near the centre of its neighbourhood."""
    people, brokers = scenario.subscribers, scenario.brokers
    share = np.resize(np.array(brokers.crowd or (1.0,)), brokers.count)
    scatter_deg = brokers.scatter * _SPACING_DEG
    groups = people.neighbourhoods or people.count
    broker = rng.choice(brokers.count, groups, p=share / share.sum())
    centre_deg = at_deg[broker] + rng.normal(0.0, scatter_deg, (groups, 2))
    if not people.neighbourhoods:
        return centre_deg, np.full(people.count, -1, dtype=np.int32)
    hood = rng.integers(0, groups, people.count).astype(np.int32)
    return centre_deg[hood] + rng.normal(0.0, scatter_deg / 10.0, (people.count, 2)), hood


def _interests(scenario: Scenario, hood: Ints, rng: np.random.Generator) -> tuple[Longs, Ints]:
    """`start` and `wants`. Interests are drawn with repeats, and repeats are then dropped."""
    people, channels = scenario.subscribers, scenario.channels
    n, per_channel = people.count, channels.subscriptions
    q = per_channel * len(channels.periods_s)
    low, high = people.subscriptions
    if people.channels[1]:
        # Each subscriber gets a random set of channels, then some subscriptions in each of them.
        kinds = len(channels.periods_s)
        ranks = rng.random((n, kinds)).argsort(axis=1).argsort(axis=1)
        chosen = ranks < rng.integers(people.channels[0], people.channels[1] + 1, n)[:, None]
        counts = np.where(chosen, rng.integers(low, high + 1, (n, kinds)), 0)
        owner = np.repeat(np.arange(n), counts.sum(axis=1))
        channel = np.repeat(np.tile(np.arange(kinds), n), counts.ravel())
        interest = channel * per_channel + _popular(per_channel, channels.popularity, len(owner), rng)
    else:
        owner = np.repeat(np.arange(n), rng.integers(low, high + 1, n))
        interest = _popular(q, channels.popularity, len(owner), rng)
        if people.neighbourhoods:
            own = rng.random(len(owner)) < people.own_share
            pool = max(1, q // people.neighbourhoods)
            # The interests of a neighbourhood are spread over channels: every `neighbourhoods`-th BE subscription.
            local = hood[owner] + people.neighbourhoods * rng.integers(0, pool, len(owner))
            interest = np.where(own, local % q, interest)
    pairs = np.unique(owner.astype(np.int64) * q + interest)
    owner, wants = np.divmod(pairs, q)
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=n))]).astype(np.int64)
    return start, wants.astype(np.int32)


def _popular(count: int, exponent: float, draws: int, rng: np.random.Generator) -> Longs:
    """Draws from range(count) by Zipf's law."""
    if exponent == 0.0:
        return rng.integers(0, count, draws)
    share = 1.0 / np.arange(1, count + 1) ** exponent
    return np.searchsorted(np.cumsum(share / share.sum()), rng.random(draws)).clip(0, count - 1)


def _rates(scenario: Scenario, q: int, rng: np.random.Generator) -> Floats:
    channels = scenario.channels
    mean = channels.mean_bytes_per_s
    rate = np.maximum(mean / 10.0, rng.normal(mean, channels.sd_bytes_per_s, q))
    if channels.tail:
        rate *= np.exp(rng.normal(0.0, channels.tail, q) - channels.tail**2 / 2.0)
    return rate
