"""What a node measures of itself."""

from __future__ import annotations

import sys

from tocsin.edge.messages import MessageType, Parcel, PeerMessage, RoundId
from tocsin.model.edge import EdgeNodeId, OperatorId, Usage
from tocsin.runtime.edge.measures import Handover, HandoverLog, OverloadLog

GIVER, TAKER = EdgeNodeId("giver"), EdgeNodeId("taker")


def message(type_: MessageType, number: int, state: bytes = b"") -> PeerMessage:
    parcels = (Parcel(OperatorId("Use/final"), Usage(), state),) if state else ()
    return PeerMessage(type_, GIVER, TAKER, RoundId(GIVER, 1), handover=number, parcels=parcels)


def test_longest_overload_is_kept_and_a_lasting_one_counts_until_now() -> None:
    log = OverloadLog(60.0)
    for now_s, load_pct in ((0.0, 60.0), (5.0, 61.0), (6.0, 90.0), (7.5, 60.0), (10.0, 70.0), (11.0, 50.0)):
        log.look(load_pct, now_s)
    assert (log.total, log.longest_s(20.0)) == (2, 2.5)
    log.look(99.0, 20.0)
    assert (log.total, log.longest_s(21.0), log.longest_s(24.0)) == (3, 2.5, 4.0)


def test_pause_lasts_from_the_first_request_until_clear() -> None:
    log = HandoverLog()
    log.note(message(MessageType.OP_OFFER_TRANSFER_REQUEST, 1, b"refused"), 1.0, 1.0)
    request = message(MessageType.OP_OFFER_TRANSFER_REQUEST, 2, b"state")
    log.note(request, 10.0, 10.5)
    log.note(request, 11.0, 11.5)
    log.note(message(MessageType.CLEAR, 1), 12.0, 12.0)
    log.note(message(MessageType.CLEAR, 2), 12.0, 12.5)
    assert list(log.recent) == [Handover((OperatorId("Use/final"),), TAKER, 5, 2.5)]
    assert (log.total, log.pause_s) == (1, 2.5)


def test_refused_hand_over_leaves_no_state_in_memory() -> None:
    log = HandoverLog()
    state = bytes(1_000)
    references = sys.getrefcount(state)
    log.note(message(MessageType.OP_OFFER_TRANSFER_REQUEST, 1, state), 1.0, 1.0)
    assert sys.getrefcount(state) == references
