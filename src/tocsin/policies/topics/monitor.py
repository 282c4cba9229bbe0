"""Per-topic monitoring [ePulsar §3.2]: from the coordinates of a topic's clients to a report of constant size.

Pure. Driven by whoever hosts the topic and knows its clients: a broker's runtime or the simulator. `pack` is the report
as bytes, `pack_all_pairs` what the naive way would send instead.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tocsin.coords.coordinate import DIMENSIONS, Coordinate, as_arrays, centroid, distances_s, one_way_s
from tocsin.model.ids import BrokerId
from tocsin.policies.topics.types import TopicName, TopicReport


def summarise(
    topic: TopicName,
    broker: BrokerId,
    broker_coordinate: Coordinate,
    producers: Sequence[Coordinate],
    consumers: Sequence[Coordinate],
    *,
    in_rate_per_s: float = 0.0,
    out_rate_per_s: float = 0.0,
) -> TopicReport:
    """The report of one topic: rates, centroids, W(t) and E(t)."""
    producer_centroid = centroid(producers) if producers else None
    consumer_centroid = centroid(consumers) if consumers else None
    return TopicReport(
        topic,
        broker,
        in_rate_per_s,
        out_rate_per_s,
        len(producers),
        len(consumers),
        producer_centroid,
        consumer_centroid,
        _deviation_s(producers, producer_centroid) + _deviation_s(consumers, consumer_centroid),
        worst_latency_s(broker_coordinate, producers, consumers),
    )


def worst_latency_s(broker: Coordinate, producers: Sequence[Coordinate], consumers: Sequence[Coordinate]) -> float:
    """E(t): the slowest way in plus the slowest way out. Without a pair nobody waits, so it is 0."""
    if not producers or not consumers:
        return 0.0
    return max(one_way_s(one, broker) for one in producers) + max(one_way_s(broker, one) for one in consumers)


def _deviation_s(clients: Sequence[Coordinate], middle: Coordinate | None) -> float:
    """How far the outermost client stands from the centroid, one way.

    [ePulsar §3.2] writes d(NC(p), NC_P(t)). With heights that distance would climb the client's height and the
    centroid's, so that a single client deviated from itself by twice its height. What is wanted is how much further
    from any broker a client can be than the centroid: the way between their points plus the difference of their
    heights. With it W(t, b) is an upper bound of E(t) at b.
    """
    if middle is None:
        return 0.0
    lift_s = middle.height_s + middle.adjustment_s
    furthest_s = max(
        math.dist(one.vector, middle.vector) + (one.height_s + one.adjustment_s - lift_s) for one in clients
    )
    return max(furthest_s, 0.0) / 2.0


_COORDINATE = struct.Struct(f"<{DIMENSIONS + 3}d")
_NUMBERS = struct.Struct("<4d2I")


def pack(report: TopicReport) -> bytes:
    """The report as it crosses the network. Its length depends on the names alone."""
    numbers = _NUMBERS.pack(
        report.in_rate_per_s,
        report.out_rate_per_s,
        report.deviation_s,
        report.worst_latency_s,
        report.producers,
        report.consumers,
    )
    nowhere = Coordinate()
    centroids = _packed(report.producer_centroid or nowhere) + _packed(report.consumer_centroid or nowhere)
    return _packed_names(report.topic, report.broker) + numbers + centroids


def pack_all_pairs(report: TopicReport, producers: Sequence[Coordinate], consumers: Sequence[Coordinate]) -> bytes:
    """The naive report of the `all-pairs` baseline: the rates, and the coordinate of each client [ePulsar §5.6]."""
    numbers = _NUMBERS.pack(report.in_rate_per_s, report.out_rate_per_s, 0.0, 0.0, len(producers), len(consumers))
    names = _packed_names(report.topic, report.broker)
    return names + numbers + b"".join(_packed(one) for one in (*producers, *consumers))


def _packed_names(topic: str, broker: str) -> bytes:
    return b"".join(struct.pack("<H", len(name.encode())) + name.encode() for name in (topic, broker))


def _packed(coordinate: Coordinate) -> bytes:
    return _COORDINATE.pack(*coordinate.vector, coordinate.height_s, coordinate.adjustment_s, coordinate.error)


def summarise_by_place(
    topics: Sequence[TopicName],
    brokers: Sequence[BrokerId],
    broker_coordinates: Sequence[Coordinate] | None,
    places: Sequence[Coordinate],
    producer_place: npt.NDArray[np.int64],
    consumers_at: npt.NDArray[np.int64],
) -> list[TopicReport]:
    """The reports `summarise` would make, for many topics of one producer whose clients stand at a few common places.

    `consumers_at` counts consumers per topic (rows) and place (columns); every topic has at least one. `brokers` and
    `broker_coordinates` are the home of each topic; without coordinates the topics are new, and E(t) is infinite until
    they have a home. Used where a million reports are made, as in figure 4 of [ePulsar].
    """
    points, lifts = as_arrays(places)
    errors = np.array([place.error for place in places])
    adjustments_s = np.array([place.adjustment_s for place in places])
    counts = consumers_at.sum(axis=1)
    shares = consumers_at / counts[:, None]
    middle_points, middle_lifts = shares @ points, shares @ lifts
    middle_adjustments_s, middle_errors = shares @ adjustments_s, shares @ errors
    there = consumers_at > 0
    flat_s = distances_s(middle_points, np.zeros(len(topics)), points, np.zeros(len(places)))
    further_s = np.where(there, flat_s + lifts[None, :] - middle_lifts[:, None], 0.0)
    deviations_s = further_s.max(axis=1) / 2.0
    worst_s = np.full(len(topics), np.inf)
    if broker_coordinates is not None:
        legs_s = distances_s(*as_arrays(broker_coordinates), points, lifts) / 2.0
        worst_s = legs_s[np.arange(len(topics)), producer_place] + np.where(there, legs_s, 0.0).max(axis=1)
    heights_s = middle_lifts - middle_adjustments_s
    return [
        TopicReport(
            topic, brokers[row], 0.0, 0.0, 1, int(counts[row]), places[producer_place[row]],
            Coordinate(
                tuple(middle_points[row].tolist()), float(heights_s[row]), float(middle_adjustments_s[row]),
                float(middle_errors[row]),
            ),
            float(deviations_s[row]), float(worst_s[row]),
        )
        for row, topic in enumerate(topics)
    ]  # fmt: skip
