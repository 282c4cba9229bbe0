"""Per-topic monitoring [ePulsar §3.2]: from the coordinates of a topic's clients to a report of constant size.

Pure. The simulator drives it; a live broker makes the same report in `broker.topics.client_coordinates`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tocsin.coords.coordinate import Coordinate, centroid, furthest_s, one_way_s
from tocsin.coords.distances import as_arrays, distances_s
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
    deviation_s = furthest_s(producers, producer_centroid) + furthest_s(consumers, consumer_centroid)
    worst_s = worst_latency_s(broker_coordinate, producers, consumers)
    rates, counts = (in_rate_per_s, out_rate_per_s), (len(producers), len(consumers))
    return TopicReport(topic, broker, *rates, *counts, producer_centroid, consumer_centroid, deviation_s, worst_s)


def worst_latency_s(broker: Coordinate, producers: Sequence[Coordinate], consumers: Sequence[Coordinate]) -> float:
    """E(t): the slowest producer to the broker plus the broker to the slowest consumer. 0 without a pair."""
    if not producers or not consumers:
        return 0.0
    slowest_in_s = max(one_way_s(producer, broker) for producer in producers)
    return slowest_in_s + max(one_way_s(broker, consumer) for consumer in consumers)


def summarise_by_place(
    topics: Sequence[TopicName],
    brokers: Sequence[BrokerId],
    broker_coordinates: Sequence[Coordinate] | None,
    places: Sequence[Coordinate],
    producer_place: npt.NDArray[np.int64],
    consumers_at: npt.NDArray[np.int64],
) -> list[TopicReport]:
    """Like `summarise`, for many topics with one producer each whose clients are at a few common places.

    `consumers_at` counts consumers per topic (rows) and place (columns); every topic has at least one. `brokers` and
    `broker_coordinates` describe the home of each topic. Without coordinates the topics are new, and E(t) is infinite.
    Figure 4 of [ePulsar] needs a million reports.
    """
    points, lifts = as_arrays(places)
    errors = np.array([place.error for place in places])
    adjustments_s = np.array([place.adjustment_s for place in places])
    counts = consumers_at.sum(axis=1)
    shares = consumers_at / counts[:, None]
    centre_points, centre_lifts = shares @ points, shares @ lifts
    centre_adjustments_s, centre_errors = shares @ adjustments_s, shares @ errors
    occupied = consumers_at > 0
    flat_s = distances_s(centre_points, np.zeros(len(topics)), points, np.zeros(len(places)))
    further_s = np.where(occupied, flat_s + lifts[None, :] - centre_lifts[:, None], 0.0)
    deviations_s = further_s.max(axis=1) / 2.0
    worst_s = np.full(len(topics), np.inf)
    if broker_coordinates is not None:
        legs_s = distances_s(*as_arrays(broker_coordinates), points, lifts) / 2.0
        worst_s = legs_s[np.arange(len(topics)), producer_place] + np.where(occupied, legs_s, 0.0).max(axis=1)
    heights_s = centre_lifts - centre_adjustments_s
    reports = []
    for row, topic in enumerate(topics):
        vector, height_s = tuple(centre_points[row].tolist()), float(heights_s[row])
        centre = Coordinate(vector, height_s, float(centre_adjustments_s[row]), float(centre_errors[row]))
        producer, deviation_s = places[producer_place[row]], float(deviations_s[row])
        consumers, worst_latency = int(counts[row]), float(worst_s[row])
        reports.append(
            TopicReport(topic, brokers[row], 0.0, 0.0, 1, consumers, producer, centre, deviation_s, worst_latency)
        )
    return reports
