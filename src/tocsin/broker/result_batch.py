"""A batch: consecutive results of one backend subscription, fetched once, encoded once per encoding and shared by all.

A batch covers [start, end) of its subscription, including positions that held no result.
"""

from __future__ import annotations

from bisect import bisect_right

from tocsin.broker.message_encoding import Encoding, encoded_result
from tocsin.model.cursor import Cursor
from tocsin.model.ids import ChannelName, SubscriptionId

_OVERHEAD_BYTES = 130
"""Memory of a result in addition to its text: two objects and two list entries."""
_BATCH_BYTES = 440
"""Memory of a batch without its results: the batch, its lists and cursors, its place in the cache [measured]. Most
batches of a continuous channel have one result."""
_ENCODING_BYTES = 190
"""Memory of an encoding in addition to its text [measured]."""


class Batch:
    __slots__ = ("_encoded", "cached", "channel", "end", "offsets", "raw_bytes", "rows", "start", "subscription")

    def __init__(
        self,
        subscription: SubscriptionId,
        channel: ChannelName,
        start: Cursor,
        epoch: int,
        offsets: list[int],
        rows: list[bytes],
    ) -> None:
        """`offsets` has one entry per result, at least one: the position after that result."""
        self.subscription = subscription
        self.channel = channel
        self.start = start
        self.end = Cursor(epoch, offsets[-1])
        self.offsets = offsets
        self.rows = rows
        self.raw_bytes = sum(map(len, rows))
        self._encoded: dict[Encoding, bytes] = {}
        self.cached = False
        """Whether the cache counts this batch."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def footprint_bytes(self) -> int:
        """Memory of the rows and of every encoding made so far."""
        encoded = sum(map(len, self._encoded.values())) + _ENCODING_BYTES * len(self._encoded)
        return _BATCH_BYTES + self.raw_bytes + _OVERHEAD_BYTES * len(self.rows) + encoded

    def cursors(self) -> list[Cursor]:
        return [Cursor(self.end.epoch, offset) for offset in self.offsets]

    def encoded(self, encoding: Encoding) -> bytes:
        """The frames of all results, concatenated. The first call makes them, later calls return the same bytes."""
        if encoding is Encoding.PLAIN:
            return b""
        data = self._encoded.get(encoding)
        if data is None:
            epoch = self.end.epoch
            data = self._encoded[encoding] = b"".join(
                encoded_result(encoding, self.subscription, self.channel, Cursor(epoch, offset), row)
                for offset, row in zip(self.offsets, self.rows, strict=True)
            )
        return data

    def between(self, after: Cursor, upto: Cursor) -> Batch | None:
        """The results after `after` and up to `upto`: this batch if it has no others, None if there are none."""
        epoch = self.end.epoch
        first = 0 if after.epoch != epoch else bisect_right(self.offsets, after.offset)
        last = len(self.offsets) if upto.epoch != epoch else bisect_right(self.offsets, upto.offset)
        if after.epoch > epoch or upto.epoch < epoch or first >= last:
            return None
        if first == 0 and last == len(self.offsets):
            return self
        start = max(self.start, after)
        return Batch(self.subscription, self.channel, start, epoch, self.offsets[first:last], self.rows[first:last])
