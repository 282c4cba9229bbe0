"""Values of the edge core survive their way over the wire."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from tocsin.edge.generations import Generation, NodeReport, SourceSpec
from tocsin.edge.messages import EdgeCode, MessageType, Parcel, PeerMessage, Piece, RoundId
from tocsin.edge.plan import Stream
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Tree, Usage
from tocsin.model.schema import Column, Schema
from tocsin.policies.operators.transfer import ReplyUrgency
from tocsin.runtime.edge import codecs
from tocsin.wire import edge_link, edge_peer

ROOT, LEAF = EdgeNodeId("root"), EdgeNodeId("leaf")
SORT = OperatorId("Q/sort")
STREAM = Stream(Schema((Column("ts", "TIMESTAMP"), Column("kwh", "DOUBLE"))), "ts")


def test_generation_survives_the_wire() -> None:
    generation = Generation(
        number=4,
        tree=Tree({LEAF: ROOT}, ROOT),
        addresses={LEAF: "http://h:1", ROOT: "http://h:2"},
        streams={"R": STREAM},
        queries=("CREATE EDGE QUERY …",),
        entries={"R": (LEAF,)},
        placement={SORT: LEAF},
        floors_us={"Q": 12},
        publishers={"p": LEAF},
        sources={"f": (LEAF, SourceSpec("f", "R", "file", "a.csv", {"speed": "60"}), 10)},
        awaited={"p2": (ROOT, ("R",))},
        publisher_streams={"p": ("R",), "p2": ("R",)},
    )
    encoded = msgspec.json.encode(codecs.encode_generation(generation))
    message = msgspec.json.decode(encoded, type=edge_link.RootMessage)
    assert isinstance(message, edge_link.StartGeneration)
    assert codecs.decode_generation(message) == generation


def test_report_survives_the_wire() -> None:
    report = NodeReport((SORT,), Usage(1.0, 2.0, 3.0), 4, 5.0, 6, 7, 8)
    assert codecs.decode_report(codecs.encode_report(report)) == report


def test_hand_over_with_state_and_leftovers_survives_the_wire() -> None:
    batch = pa.RecordBatch.from_pydict({"kwh": [1.5, None]})
    message = PeerMessage(
        MessageType.OP_OFFER_TRANSFER_REQUEST,
        ROOT,
        LEAF,
        RoundId(ROOT, 3),
        ReplyUrgency.HIGH,
        12.5,
        (Transfer((SORT,), LEAF, Usage(1.0)),),
        handover=2,
        parcels=(Parcel(SORT, Usage(1.0, 2.0), b"\x00\xffstate"),),
        refusal=EdgeCode.INFEASIBLE,
        barrier=17,
        leftovers=(Piece(SORT, 0, batch), Piece(SORT, 0, None, 99)),
        sender_epoch=4,
        receiver_epoch=4,
    )
    row = edge_peer.decode(codecs.encode_peer_message(message))
    assert isinstance(row, edge_peer.PeerRow)
    assert codecs.decode_peer_message(row) == message


def test_parcel_of_ten_megabytes_costs_little_more_than_its_state() -> None:
    state = bytes(10 << 20)
    parcels = (Parcel(SORT, Usage(), state),)
    message = PeerMessage(MessageType.OP_OFFER_TRANSFER_REQUEST, ROOT, LEAF, RoundId(ROOT, 3), parcels=parcels)
    encoded = codecs.encode_peer_message(message)
    assert len(encoded) < len(state) + 300
    row = edge_peer.decode(encoded)
    assert isinstance(row, edge_peer.PeerRow) and codecs.decode_peer_message(row) == message


@pytest.mark.parametrize("change", [{"kind": "opUnknown"}, {"urgent": "SOON"}, {"refusal": "NO_REASON"}])
def test_unknown_values_are_an_error_of_the_sender(change: dict[str, str]) -> None:
    row = edge_peer.PeerRow("Clear", "root", "leaf", "root", 1, "UNSET")
    with pytest.raises((ValueError, KeyError)):
        codecs.decode_peer_message(msgspec.structs.replace(row, **change))
