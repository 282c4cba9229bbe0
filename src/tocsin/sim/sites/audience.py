"""Interests of subscribers, keywords of messages, and the utility of publishers [ePEER §5.3.1.2, §5.3.3].

A few dozen messages per publisher are drawn once, and each of its subscribers rates them with equation 8. The average
of a second with N messages is then drawn around that mean, with the spread of a mean of N messages. That is exact
enough for averages, and thousands of messages a second need not be rated one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.sim.sites.workload import Counts, Floats, Quality, SiteWorld

_POOL = 64
"""Messages drawn per publisher."""


@dataclass(frozen=True)
class AudienceSettings:
    """Settings of the audience. The thesis discloses only the shares of publishers."""

    vocabulary: int = 10
    """Keywords per topic."""
    interests: tuple[int, int] = (4, 8)
    """Keywords of the topic in which a subscriber is interested."""
    keywords: tuple[int, int] = (4, 8)
    """Keywords per message. All belong to the topic for a good publisher, half for a medium one, none for a bad one."""
    shares: tuple[float, float, float] = (0.5, 0.25, 0.25)
    """Shares of good, medium and bad publishers [ePEER §5.3.1.2]."""


@dataclass(frozen=True)
class Audience:
    """Flat arrays over the publishers and subscribers of all topics. A pair is a publisher and a subscriber of one
    topic."""

    quality: tuple[Quality, ...]
    """The quality of each publisher."""
    publisher_topic: Counts
    subscriber_topic: Counts
    pair_publisher: Counts
    pair_subscriber: Counts
    pair_mean: Floats
    """Mean utility of the publisher's messages to the subscriber."""
    pair_spread: Floats
    """Standard deviation of one message's utility."""

    def averages(self, rate_per_s: Floats, rng: np.random.Generator) -> Floats:
        """Ū_m(s, p) of one second per pair, given the rate of each publisher."""
        messages = np.maximum(rate_per_s[self.pair_publisher], 1.0)
        noise = rng.standard_normal(len(self.pair_mean)) * self.pair_spread / np.sqrt(messages)
        return np.clip(self.pair_mean + noise, 0.0, 1.0)


def draw_audience(world: SiteWorld, settings: AudienceSettings, rng: np.random.Generator) -> Audience:
    publisher_topic = np.repeat(np.arange(len(world.topics)), [len(publishers) for publishers in world.publishers])
    subscriber_topic = np.repeat(np.arange(len(world.topics)), world.audience)
    quality = _qualities(len(publisher_topic), settings, rng)
    interests = [_interests(len(subscribers), settings, rng) for subscribers in world.subscribers]
    first_subscriber = np.concatenate([[0], np.cumsum(world.audience)])
    pairs: list[tuple[Counts, Counts, Floats, Floats]] = []
    for publisher, topic in enumerate(publisher_topic.tolist()):
        utilities = _rate(interests[topic], quality[publisher], settings, rng)
        count = len(interests[topic])
        subscribers = first_subscriber[topic] + np.arange(count)
        pairs.append((np.full(count, publisher), subscribers, utilities.mean(axis=1), utilities.std(axis=1)))
    of, by, mean, spread = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return Audience(tuple(quality), publisher_topic, subscriber_topic, of, by, mean, spread)


def _qualities(count: int, settings: AudienceSettings, rng: np.random.Generator) -> list[Quality]:
    bounds = np.round(np.cumsum(settings.shares) * count).astype(int)
    ordered = np.searchsorted(bounds, np.arange(count), side="right")
    return [list(Quality)[kind] for kind in rng.permutation(ordered)]


def _interests(subscribers: int, settings: AudienceSettings, rng: np.random.Generator) -> Floats:
    """Subscriber by keyword of the topic: 1 if the subscriber is interested."""
    return _subsets(rng.integers(*settings.interests, subscribers, endpoint=True), settings.vocabulary, rng)


def _subsets(sizes: Counts, of: int, rng: np.random.Generator) -> Floats:
    """A random subset of each size, as rows of 0 and 1."""
    rank = rng.random((len(sizes), of)).argsort(axis=1).argsort(axis=1)
    return (rank < sizes[:, None]).astype(float)


def _rate(interests: Floats, quality: Quality, settings: AudienceSettings, rng: np.random.Generator) -> Floats:
    """U_m by subscriber and message (equation 8) for the drawn messages."""
    keywords = rng.integers(*settings.keywords, _POOL, endpoint=True)
    on_topic = {Quality.GOOD: keywords, Quality.MEDIUM: keywords // 2, Quality.BAD: 0 * keywords}[quality]
    used = _subsets(np.minimum(on_topic, settings.vocabulary), settings.vocabulary, rng)
    matched = interests @ used.T
    return np.asarray(matched**2 / (interests.sum(axis=1)[:, None] * keywords[None, :]))
