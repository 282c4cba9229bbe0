"""Between the values of the edge core and the messages of the wire."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tocsin.edge.generations import Generation, NodeReport, SourceSpec
from tocsin.edge.messages import EdgeCode, MessageType, Parcel, PeerMessage, Piece, RoundId
from tocsin.edge.plan import Stream
from tocsin.model.edge import EdgeNodeId, OperatorId, Transfer, Tree, Usage
from tocsin.model.schema import Column, Schema
from tocsin.policies.operators.transfer import ReplyUrgency
from tocsin.runtime.edge.entry_log import decode_batch, encode_batch
from tocsin.wire import edge_link, edge_peer

# The control connection.


def encode_generation(generation: Generation) -> edge_link.StartGeneration:
    return edge_link.StartGeneration(
        number=generation.number,
        root=generation.tree.root,
        parents={str(child): str(parent) for child, parent in generation.tree.parents.items()},
        addresses={str(node): address for node, address in generation.addresses.items()},
        streams={name: encode_stream(stream) for name, stream in generation.streams.items()},
        queries=list(generation.queries),
        entries={stream: [str(node) for node in nodes] for stream, nodes in generation.entries.items()},
        placement={str(operator): str(node) for operator, node in generation.placement.items()},
        floors_us=dict(generation.floors_us),
        publishers={publisher: str(node) for publisher, node in generation.publishers.items()},
        sources=[
            edge_link.PlacedSource(encode_source(spec), node, position)
            for node, spec, position in generation.sources.values()
        ],
        awaited={publisher: (str(node), list(streams)) for publisher, (node, streams) in generation.awaited.items()},
        publisher_streams={name: list(streams) for name, streams in generation.publisher_streams.items()},
    )


def decode_generation(message: edge_link.StartGeneration) -> Generation:
    """Raises LookupError or ValueError if the message contradicts itself."""
    return Generation(
        number=message.number,
        tree=Tree(
            {EdgeNodeId(child): EdgeNodeId(parent) for child, parent in message.parents.items()},
            EdgeNodeId(message.root),
        ),
        addresses={EdgeNodeId(node): address for node, address in message.addresses.items()},
        streams={name: decode_stream(stream) for name, stream in message.streams.items()},
        queries=tuple(message.queries),
        entries={stream: tuple(map(EdgeNodeId, nodes)) for stream, nodes in message.entries.items()},
        placement={OperatorId(operator): EdgeNodeId(node) for operator, node in message.placement.items()},
        floors_us=message.floors_us,
        publishers={publisher: EdgeNodeId(node) for publisher, node in message.publishers.items()},
        sources={
            placed.source.name: (EdgeNodeId(placed.node), decode_source(placed.source), placed.position)
            for placed in message.sources
        },
        awaited={name: (EdgeNodeId(node), tuple(streams)) for name, (node, streams) in message.awaited.items()},
        publisher_streams={name: tuple(streams) for name, streams in message.publisher_streams.items()},
    )


def encode_stream(stream: Stream) -> edge_link.StreamDeclaration:
    columns = [edge_link.Column(column.name, column.type) for column in stream.schema.columns]
    return edge_link.StreamDeclaration(columns, stream.time)


def decode_stream(declaration: edge_link.StreamDeclaration) -> Stream:
    columns = tuple(Column(column.name, column.type) for column in declaration.columns)
    return Stream(Schema(columns), declaration.time)


def encode_source(spec: SourceSpec) -> edge_link.Source:
    return edge_link.Source(spec.name, spec.stream, spec.kind, spec.location, dict(spec.options))


def decode_source(source: edge_link.Source) -> SourceSpec:
    return SourceSpec(source.name, source.stream, source.kind, source.location, source.options)


def encode_report(report: NodeReport) -> edge_link.Report:
    usage = report.usage
    return edge_link.Report(
        [str(operator) for operator in report.operators],
        usage.memory_pct,
        usage.cpu_pct,
        usage.network_pct,
        report.inbox_bytes,
        report.rows_per_s,
        report.late_rows,
        report.bytes_up,
        report.raw_bytes,
    )


def decode_report(report: edge_link.Report) -> NodeReport:
    return NodeReport(
        tuple(OperatorId(operator) for operator in report.operators),
        Usage(report.memory_pct, report.cpu_pct, report.network_pct),
        report.inbox_bytes,
        report.rows_per_s,
        report.late_rows,
        report.bytes_up,
        report.raw_bytes,
    )


# The peer connection.


def encode_peer_message(message: PeerMessage) -> bytes:
    return edge_peer.encode(
        edge_peer.PeerRow(
            kind=message.type.value,
            sender=message.sender,
            receiver=message.receiver,
            initiator=message.round.initiator,
            round=message.round.number,
            urgent=message.urgent.name,
            size_pct=message.size_pct,
            transfers=[
                edge_peer.TransferRow(list(transfer.operators), transfer.destination, _usage_row(transfer.usage))
                for transfer in message.transfers
            ],
            handover=message.handover,
            parcels=[
                edge_peer.ParcelRow(parcel.operator, _usage_row(parcel.usage), parcel.state)
                for parcel in message.parcels
            ],
            refusal=None if message.refusal is None else message.refusal.value,
            barrier=message.barrier,
            leftovers=[_leftover(piece) for piece in message.leftovers],
            sender_epoch=message.sender_epoch,
            receiver_epoch=message.receiver_epoch,
        )
    )


def decode_peer_message(row: edge_peer.PeerRow) -> PeerMessage:
    """Raises ValueError, KeyError or `pa.ArrowException` if a value is not one of the protocol."""
    return PeerMessage(
        type=MessageType(row.kind),
        sender=EdgeNodeId(row.sender),
        receiver=EdgeNodeId(row.receiver),
        round=RoundId(EdgeNodeId(row.initiator), row.round),
        urgent=ReplyUrgency[row.urgent],
        size_pct=row.size_pct,
        transfers=tuple(
            Transfer(
                tuple(map(OperatorId, transfer.operators)), EdgeNodeId(transfer.destination), _usage(transfer.usage)
            )
            for transfer in row.transfers
        ),
        handover=row.handover,
        parcels=tuple(
            Parcel(OperatorId(parcel.operator), _usage(parcel.usage), parcel.state) for parcel in row.parcels
        ),
        refusal=None if row.refusal is None else EdgeCode(row.refusal),
        barrier=row.barrier,
        leftovers=_pieces(row.leftovers),
        sender_epoch=row.sender_epoch,
        receiver_epoch=row.receiver_epoch,
    )


def _usage_row(usage: Usage) -> edge_peer.UsageRow:
    return edge_peer.UsageRow(usage.memory_pct, usage.cpu_pct, usage.network_pct)


def _usage(row: edge_peer.UsageRow) -> Usage:
    return Usage(row.memory_pct, row.cpu_pct, row.network_pct)


def _leftover(piece: Piece) -> edge_peer.LeftoverRow:
    batch = None if piece.batch is None else encode_batch(piece.batch)
    return edge_peer.LeftoverRow(piece.operator, piece.port, batch, piece.watermark_us)


def _pieces(rows: Sequence[edge_peer.LeftoverRow]) -> tuple[Piece, ...]:
    def batch(row: edge_peer.LeftoverRow) -> pa.RecordBatch | None:
        if row.batch is None:
            return None
        try:
            return decode_batch(row.batch)
        except StopIteration:
            raise ValueError("a leftover without a batch") from None

    return tuple(Piece(OperatorId(row.operator), row.port, batch(row), row.watermark_us) for row in rows)
