"""The emulated data cluster answers pulls in the form of `wire.cluster`."""

from __future__ import annotations

import msgspec

from tocsin.benchmarks.shared.data_cluster import EmulatedChannel
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId
from tocsin.wire import cluster as wire

S1 = SubscriptionId("0" * 32)


def test_handmade_result_line_equals_the_encoded_struct() -> None:
    channel = EmulatedChannel(ChannelName("C"), execution=1, offsets={S1: [1048577]}, rows={S1: [b'{"n":1}']})
    gaps, results = channel.lines(S1, Cursor(1, 1048576))
    assert gaps == []
    assert results == [wire.encode(wire.ResultLine(S1, "1-1048577", 7, msgspec.Raw(b'{"n":1}')))]


def test_cursor_of_another_epoch_gives_a_gap_and_all_results() -> None:
    channel = EmulatedChannel(ChannelName("C"), execution=1, offsets={S1: [1048577]}, rows={S1: [b"{}"]})
    gaps, results = channel.lines(S1, Cursor(7, 0))
    assert gaps == [wire.encode(wire.ResultLine(S1, "1-1048576", gap=True))]
    assert len(results) == 1
