"""The encoded form of the messages between the nodes of an edge tree: both sides may run different versions."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from tocsin.wire import edge_data, edge_link, edge_peer

SCHEMA = pa.schema([("meter", pa.string()), ("total", pa.float64())])
BATCH = pa.RecordBatch.from_pydict({"meter": ["m1", "m2"], "total": [1.5, 2.25]}, schema=SCHEMA)

FROM_NODE: list[tuple[edge_link.NodeMessage, str]] = [
    (
        edge_link.Register(
            "leaf", "root", 7, "http://h:1", ["Readings"], [edge_link.Source("f", "R", "file", "a.csv")]
        ),
        '{"type":"register","node":"leaf","parent":"root","run":7,"address":"http://h:1","streams":["Readings"],'
        '"sources":[{"name":"f","stream":"R","kind":"file","location":"a.csv","options":{}}]}',
    ),
    (
        edge_link.Beat(7, 1.5, 3, edge_link.Report(["Q/sort"], 12.5)),
        '{"type":"beat","run":7,"sent_s":1.5,"generation":3,"report":{"operators":["Q/sort"],"memory_pct":12.5,'
        '"cpu_pct":0.0,"network_pct":0.0,"inbox_bytes":0,"rows_per_s":0.0,"late_rows":0,"bytes_up":0,"raw_bytes":0}}',
    ),
    (edge_link.Ready(3), '{"type":"ready","generation":3}'),
    (edge_link.LinkBroken(3, "leaf"), '{"type":"link_broken","generation":3,"peer":"leaf"}'),
    (
        edge_link.AttachPublisher("p", "R", 3),
        '{"type":"attach_publisher","publisher":"p","stream":"R","generation":3}',
    ),
    (edge_link.SourcePosition("f", 4_096), '{"type":"source_position","source":"f","position":4096}'),
    (
        edge_link.TransferAnswer(1, [], "UNAVAILABLE"),
        '{"type":"transfer_answer","request":1,"operators":[],"code":"UNAVAILABLE"}',
    ),
]
FROM_ROOT: list[tuple[edge_link.RootMessage, str]] = [
    (
        edge_link.StartGeneration(
            2,
            "root",
            {"leaf": "root"},
            {"leaf": "http://h:1"},
            {"R": edge_link.StreamDeclaration([edge_link.Column("ts", "TIMESTAMP")], "ts")},
            ["CREATE EDGE QUERY …"],
            {"R": ["leaf"]},
            {"Q/sort": "root"},
            {"Q": 5},
            {"p": "leaf"},
            [],
            {"p2": ("root", ["R"])},
        ),
        '{"type":"start_generation","number":2,"root":"root","parents":{"leaf":"root"},"addresses":{"leaf":"http://h:1"},'
        '"streams":{"R":{"columns":[["ts","TIMESTAMP"]],"time":"ts"}},"queries":["CREATE EDGE QUERY …"],'
        '"entries":{"R":["leaf"]},"placement":{"Q/sort":"root"},"floors_us":{"Q":5},"publishers":{"p":"leaf"},'
        '"sources":[],"awaited":{"p2":["root",["R"]]},"publisher_streams":{}}',
    ),
    (edge_link.RunGeneration(2), '{"type":"run_generation","number":2}'),
    (edge_link.BeatAnswer(1.5, {"Q": 5}), '{"type":"beat_answer","sent_s":1.5,"floors_us":{"Q":5}}'),
    (edge_link.Fenced(7, 5), '{"type":"fenced","run":7,"known":5}'),
    (edge_link.GrantPublisher("p", "R"), '{"type":"grant_publisher","publisher":"p","stream":"R"}'),
    (
        edge_link.OrderTransfer(1, ["Q/sort"], "leaf"),
        '{"type":"order_transfer","request":1,"operators":["Q/sort"],"destination":"leaf"}',
    ),
]


@pytest.mark.parametrize(("message", "encoded"), FROM_NODE)
def test_node_messages_have_their_encoded_form(message: edge_link.NodeMessage, encoded: str) -> None:
    assert msgspec.json.encode(message).decode() == encoded
    assert msgspec.json.decode(encoded, type=edge_link.NodeMessage) == message


@pytest.mark.parametrize(("message", "encoded"), FROM_ROOT)
def test_root_messages_have_their_encoded_form(message: edge_link.RootMessage, encoded: str) -> None:
    assert msgspec.json.encode(message).decode() == encoded
    assert msgspec.json.decode(encoded, type=edge_link.RootMessage) == message


def test_opening_and_credit_have_their_encoded_form() -> None:
    assert edge_data.encode(edge_data.OpenData("leaf", 3)) == b"\x93\x00\xa4leaf\x03"
    assert edge_data.encode(edge_data.Credit(500)) == b"\x92\x00\xcd\x01\xf4"
    assert edge_data.decode_credit(b"\x92\x00\xcd\x01\xf4").total_bytes == 500
    assert edge_peer.encode(edge_peer.OpenPeer("leaf", 3)) == b"\x83\xa4type\xa4open\xa4node\xa4leaf\xaageneration\x03"


def test_pieces_return_unchanged_and_schemas_travel_once() -> None:
    encoder, decoder = edge_data.PieceEncoder(), edge_data.PieceDecoder()
    items: list[edge_data.Item] = [("Q/merge@n", 1, BATCH, None), ("Q/merge@n", 1, None, 17), ("Q/sort", 0, None, 9)]
    first = encoder.encode(items)
    assert [item for message in first for item in decoder.decode(message)] == items
    again = encoder.encode(items)
    assert [item for message in again for item in decoder.decode(message)] == items
    assert (len(first), len(again)) == (3, 1), "two declarations, then none"


def test_watermark_costs_a_few_bytes() -> None:
    encoder = edge_data.PieceEncoder()
    encoder.encode([("Q/merge@n", 0, None, 1_767_225_600_000_000)])
    [message] = encoder.encode([("Q/merge@n", 0, None, 1_767_225_601_000_000)])
    assert len(message) <= 16


def test_large_messages_are_compressed() -> None:
    batch = pa.RecordBatch.from_pydict({"meter": ["m"] * 1_000, "total": [1.0] * 1_000}, schema=SCHEMA)
    encoder, decoder = edge_data.PieceEncoder(), edge_data.PieceDecoder()
    messages = encoder.encode([("Q/merge@n", 0, batch, None)])
    assert sum(map(len, messages)) < batch.nbytes / 4
    assert [item for message in messages for item in decoder.decode(message)] == [("Q/merge@n", 0, batch, None)]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        edge_data.encode(edge_data.Pieces([edge_data.PieceRow(0, 1, None)])),
        edge_data.encode(edge_data.DeclareInput(0, "Q/sort", 0, b"no schema")),
        edge_data.encode(edge_data.Compressed(1 << 40, b"x")),
        edge_data.encode(edge_data.Compressed(10, b"not zstd")),
        edge_data.encode(edge_data.OpenData("leaf", 1)),
    ],
)
def test_malformed_data_is_rejected_without_another_error(message: bytes) -> None:
    with pytest.raises(edge_data.MalformedData):
        edge_data.PieceDecoder().decode(message)


def test_batch_that_does_not_match_its_schema_is_rejected() -> None:
    encoder, decoder = edge_data.PieceEncoder(), edge_data.PieceDecoder()
    declaration, _ = encoder.encode([("Q/sort", 0, BATCH, None)])
    decoder.decode(declaration)
    forged = edge_data.encode(edge_data.Pieces([edge_data.PieceRow(0, None, b"\x00" * 64)]))
    with pytest.raises(edge_data.MalformedData):
        decoder.decode(forged)
