"""Random sites with their topics and clients, as in the thesis [ePEER §4.5.1, §5.3.1].

A simulation starts from a `SiteWorld`. Choices that the thesis does not disclose are fields of `SiteSettings` and are
marked as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.policies.sites.types import Bundle, PublisherId, SiteId
from tocsin.policies.topics.types import TopicName

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

BYTES_PER_S_PER_MBPS = 125_000.0
SITE = SiteId("site")
HEAD = BrokerId("Bh")


class Quality(StrEnum):
    """The utility of a publisher's messages to its subscribers [ePEER §5.3.1.2]."""

    GOOD = "good"
    MEDIUM = "medium"
    BAD = "bad"


@dataclass(frozen=True)
class SiteSettings:
    load: float
    """Undisclosed: mean utilisation of the edges at rest, of the metric chosen by `load_is_output`. Rates are drawn and
    then scaled to it, so that runs differ in the spread of the load and not in its amount."""
    load_is_output: bool = False
    """False: `load` is of matching, the scarce resource in §4.5. True: of output bandwidth, the scarce one in §5.3."""
    topics: int = 100
    edges: int = 4
    matching_per_s: tuple[float, float] = (20_000.0, 30_000.0)
    edge_mbps: tuple[float, float] = (1_000.0, 1_000.0)
    head_mbps: float = 1_000.0
    size_bytes: tuple[float, float] = (200.0, 1_000.0)
    """§4.5 gives this size for sensor data; we use it for all topics."""
    delay_s: tuple[float, float] = (1.0, 50.0)
    publishers: tuple[int, int] = (1, 5)
    """Undisclosed: the number of publishers per topic."""
    subscribers: tuple[int, int] = (1, 8)
    """Undisclosed: the number of subscribers per topic. 450 in all on average; §5.3.4 counts 435 in its example."""
    rate_spread: tuple[float, float] = (0.2, 1.8)
    """Undisclosed: a publisher's rate, as a multiple of its topic's mean."""
    topic_rate_sigma: float = 0.0
    """Undisclosed: σ of the log-normal factor of a topic's rate. 0: all topics have the same mean."""
    matched_each: bool = False
    """True: an edge matches a message once per subscription. False: once for all subscribers of its topic, as table 4-3
    implies. Table 4-2's σ_t, "the number of message being exchanged", allows both."""


@dataclass(frozen=True)
class SiteWorld:
    edges: tuple[BrokerId, ...]
    matching_per_s: Floats
    """C_m: the matching capacity of each edge."""
    edge_bytes_per_s: Floats
    """C_i = C_o: the input and output capacity of each edge."""
    head_bytes_per_s: float
    topics: tuple[TopicName, ...]
    size_bytes: Floats
    """The size of a message of each topic."""
    delay_s: Floats
    """Per topic: the delay that its subscribers require."""
    publishers: tuple[tuple[PublisherId, ...], ...]
    """The publishers of each topic."""
    rates_per_s: tuple[Floats, ...]
    """Per topic: the rate of each publisher."""
    subscribers: tuple[tuple[SubscriberId, ...], ...]
    """The subscribers of each topic."""
    matched_each: bool = False

    @property
    def topic_rate_per_s(self) -> Floats:
        return np.array([rates.sum() for rates in self.rates_per_s])

    @property
    def audience(self) -> Counts:
        return np.array([len(subscribers) for subscribers in self.subscribers])


def make_site(settings: SiteSettings, rng: np.random.Generator) -> SiteWorld:
    count = settings.topics
    matching = rng.uniform(*settings.matching_per_s, settings.edges)
    bandwidth = rng.uniform(*settings.edge_mbps, settings.edges) * BYTES_PER_S_PER_MBPS
    size = rng.uniform(*settings.size_bytes, count)
    delay = rng.uniform(*settings.delay_s, count)
    audience = rng.integers(settings.subscribers[0], settings.subscribers[1], count, endpoint=True)
    sources = rng.integers(settings.publishers[0], settings.publishers[1], count, endpoint=True)
    rates = [rng.uniform(*settings.rate_spread, n) for n in sources]
    if settings.topic_rate_sigma:
        factors = rng.lognormal(0.0, settings.topic_rate_sigma, count)
        rates = [factor * of_topic for factor, of_topic in zip(factors, rates, strict=True)]
    totals = np.array([of_topic.sum() for of_topic in rates])
    if settings.load_is_output:
        scale = settings.load * bandwidth.sum() / float((totals * size * audience).sum())
    else:
        matched = totals * audience if settings.matched_each else totals
        scale = settings.load * matching.sum() / float(matched.sum())
    return SiteWorld(
        edges=tuple(BrokerId(f"B{n}") for n in range(settings.edges)),
        matching_per_s=matching,
        edge_bytes_per_s=bandwidth,
        head_bytes_per_s=settings.head_mbps * BYTES_PER_S_PER_MBPS,
        topics=tuple(TopicName(f"t{n:03}") for n in range(count)),
        size_bytes=size,
        delay_s=delay,
        publishers=tuple(tuple(PublisherId(f"p{n:03}-{k}") for k in range(m)) for n, m in enumerate(sources)),
        rates_per_s=tuple(scale * of_topic for of_topic in rates),
        subscribers=tuple(tuple(SubscriberId(f"s{n:03}-{k}") for k in range(m)) for n, m in enumerate(audience)),
        matched_each=settings.matched_each,
    )


def draw_bursts(topics: int, rng: np.random.Generator) -> tuple[Counts, Counts]:
    """Topics of the two bursts: 10 to 15 each, without overlap [ePEER §4.5.1.2]."""
    first, second = rng.integers(10, 15, 2, endpoint=True)
    chosen = rng.permutation(topics)[: first + second]
    return chosen[:first], chosen[first:]


class EdgeProfiles(Mapping[BrokerId, tuple[Bundle, ...]]):
    """Load distribution profiles by edge, computed when a policy reads them: in most seconds no policy does."""

    def __init__(self, world: SiteWorld, profile: Callable[[int], tuple[Bundle, ...]]) -> None:
        """`profile` makes the profile of an edge from the edge's number."""
        self._numbers = {edge: number for number, edge in enumerate(world.edges)}
        self._profile = profile

    def __getitem__(self, broker: BrokerId) -> tuple[Bundle, ...]:
        return self._profile(self._numbers[broker])

    def __iter__(self) -> Iterator[BrokerId]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)
