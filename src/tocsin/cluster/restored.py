"""After an older copy of a data root was put back: every channel begins a new life.

What was executed since the copy was made is gone, but cursors into it are not: subscribers, brokers and the coordinator
still have them, and the same numbers would be given out again for other results. A new epoch makes each of those
cursors a gap that is told, instead of results that are passed over. Subscriptions and positions stay.
"""

from __future__ import annotations

import os

from tocsin.cluster.catalog import GENERATION, Catalog
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.store.lock import lock
from tocsin.model.ids import ChannelName
from tocsin.wire.errors import Code, TocsinError


def begin_new_lives(settings: ClusterSettings, now_s: float) -> list[ChannelName]:
    """Of all channels in the catalog of a data cluster that is not running; returns which."""
    state = settings.state_folder()
    if not state.is_dir():
        raise TocsinError(Code.NOT_FOUND, f"there is no folder {state}: expected the state folder of a data cluster")
    descriptor = lock(state / "lock")
    catalog = Catalog(settings.catalog_url())
    try:
        channels = catalog.channels()
        # The life that was lost has given out numbers that this catalog knows nothing of. Milliseconds are beyond them.
        epoch = max(int(catalog.fact(GENERATION) or 0), int(now_s * 1000))
        catalog.set_fact(GENERATION, str(epoch + len(channels)))
        for number, stored in enumerate(channels, 1):
            catalog.replace_channel(stored.channel, stored.epoch, epoch + number, stored.positions, now_s)
        return [stored.channel.name for stored in channels]
    finally:
        catalog.close()
        os.close(descriptor)
