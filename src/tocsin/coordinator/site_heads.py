"""Head offloading: an overloaded head hands topics over to other heads of its site [ePEER §4.4.3.2, §4.4.4].

All publishers of a topic attach to its home, so a bundle of publishers moves by moving the home, and `topic_moves`
carries the move out. A bundle has one client, which stands for all publishers of the topic: a part of them cannot move.
The thesis moves publishers to heads of other clusters, because a cluster of the thesis has one head. Here a site may
have several.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from tocsin.coordinator import topic_moves
from tocsin.coordinator.site_loads import SiteLoads, topic_load
from tocsin.coordinator.topic_placing import may_host
from tocsin.coordinator.topic_records import TopicRecord
from tocsin.coordinator.turn import Turn
from tocsin.model.ids import BrokerId, PublisherId, TopicName
from tocsin.policies.sites import migration
from tocsin.policies.sites.load import reach
from tocsin.policies.sites.types import Bundle, SiteMove
from tocsin.policies.topics.types import Departure, TopicMoveReason, latest_departures


def head_bundles(
    turn: Turn, loads: SiteLoads, head: BrokerId, resting: Container[tuple[BrokerId, TopicName]]
) -> Iterator[Bundle]:
    """The topics that the head can hand over, with the load that leaves the head with each."""
    for load in loads.topics(head).values():
        record = turn.registry.topics.topics.get(load.topic)
        if record is not None and (head, record.name) not in resting and _can_move(turn, record, head):
            clients, sent = (PublisherId(record.name),), (load.in_bytes_per_s,)
            where = reach(load.receivers > 0, False)
            yield Bundle(record.name, record.tolerated_delay_s, where, topic_load(load), clients, sent)


def _can_move(turn: Turn, record: TopicRecord, head: BrokerId) -> bool:
    is_settled = record.move is None and record.name not in turn.registry.topics.queued
    return is_settled and record.home == head and record.holder is not None


def start_move(turn: Turn, move: SiteMove, reason: str) -> None:
    """Move the home of the topic. If that is not possible any more, `outcomes` reports it."""
    record, target = turn.registry.topics.topics.get(move.topic), turn.registry.brokers.get(move.target)
    if record is None or target is None or not may_host(turn, target) or not _can_move(turn, record, move.source):
        return
    worst_s = 0.0 if record.latency is None else record.latency.worst_s or 0.0
    left = Departure(move.source, turn.now_s, TopicMoveReason.OVERLOAD, worst_s)
    record.departures = latest_departures(record.departures, left)
    topic_moves.start(turn, record, target, reason)


def outcomes(turn: Turn, moves: Iterable[SiteMove]) -> Iterator[migration.Event]:
    """Confirm the moves that have ended. A topic that stayed counts as a client that left: nothing waits for it."""
    for move in moves:
        record, client = turn.registry.topics.topics.get(move.topic), move.clients[0]
        if record is not None and record.move is not None and record.move.target == move.target:
            continue
        if record is not None and record.home == move.target:
            yield migration.ClientConnected(client, move.topic, move.target)
            yield migration.ClientDrained(client, move.topic, move.source)
        else:
            yield migration.ClientGone(client, move.topic)
