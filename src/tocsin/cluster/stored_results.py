"""Results as the catalog and the files have them, for processes that serve pulls without Spark [decision 26].

Any number of such processes may read beside the data cluster. What a pull reads was committed before it began. Files
stay for some minutes after a merge has replaced them; bytes that the catalog stores may be gone earlier, and then the
pull fails and is repeated.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.pulling import ChannelHead
from tocsin.cluster.store.readers import Readers
from tocsin.cluster.store.results import ResultStore
from tocsin.cluster.store.storage import Storage
from tocsin.model.cursor import Cursor, offset_of
from tocsin.model.ids import BrokerId, ChannelName, SubscriptionId
from tocsin.wire.errors import Code, TocsinError


class StoredResults:
    """Thread-safe. Implements `pulling.ResultSource`."""

    def __init__(self, catalog: Catalog, storage: Storage) -> None:
        self.catalog = catalog
        self.results = ResultStore(catalog, storage, Readers(), recent_bytes=0)

    def head_of(self, channel: str) -> ChannelHead:
        head = self.catalog.channels.head(channel)
        if head is None:
            raise TocsinError(Code.UNKNOWN_CHANNEL, f"there is no channel {channel}")
        name, epoch, execution = head
        columns = _stored_columns(self.catalog, name, epoch)
        if columns is None:
            raise TocsinError(Code.NOT_READY, f"channel {name} was replaced just now; try again", retry_after_s=1)
        return ChannelHead(name, columns, Cursor(epoch, offset_of(execution + 1)))

    def numbers_of(self, channel: ChannelName, ids: Iterable[SubscriptionId]) -> Mapping[SubscriptionId, int]:
        return self.catalog.subscriptions.numbers(channel, list(ids))

    def held(self, numbers: Sequence[int], brokers: Callable[[BrokerId], bool]) -> npt.NDArray[np.bool_]:
        holders = self.catalog.subscriptions.holders_of(numbers)
        return np.array([any(map(brokers, holders[number])) for number in numbers], np.bool_)


def store_columns(catalog: Catalog, channel: ChannelName, epoch: int, columns: pa.Schema) -> None:
    """Store which columns a channel's query selects: only Spark can tell, and results may have no rows yet."""
    value = f"{epoch} {base64.b64encode(columns.serialize()).decode()}"
    if catalog.fact(_fact(channel)) != value:
        catalog.set_fact(_fact(channel), value)


def _stored_columns(catalog: Catalog, channel: ChannelName, epoch: int) -> pa.Schema | None:
    stored, _, content = (catalog.fact(_fact(channel)) or "").partition(" ")
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(content))) if stored == str(epoch) else None


def _fact(channel: ChannelName) -> str:
    return f"columns {channel}"
