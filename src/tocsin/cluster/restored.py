"""New epochs for a data root that was restored from an older copy. Needs neither Spark nor a running data cluster."""

from __future__ import annotations

from tocsin.cluster.catalog import Catalog
from tocsin.cluster.root_lease import RootLease
from tocsin.cluster.settings import ClusterSettings
from tocsin.model.ids import ChannelName
from tocsin.wire.errors import Code, TocsinError


def start_new_epochs(settings: ClusterSettings, now_s: float) -> list[ChannelName]:
    """Give every channel a new epoch and return their names, after the data root was restored from an older copy.

    The executions since the copy are lost, but subscribers, brokers and the coordinator still have cursors into them.
    The data cluster would use the same execution numbers again for other results. With a new epoch it reports each old
    cursor as a gap instead of skipping results. Subscriptions and positions stay. The data cluster must not be running.
    """
    state = settings.state_folder()
    if not state.is_dir():
        raise TocsinError(Code.NOT_FOUND, f"there is no folder {state}: expected the state folder of a data cluster")
    lease = RootLease(settings)
    lease.acquire()
    catalog = Catalog(settings.catalog_url(), lease.lease)
    try:
        channels = catalog.channels.all()
        # The lost executions may have used epochs that this catalog does not know. The time in milliseconds is higher
        # than those.
        first = catalog.next_generation(len(channels), at_least=int(now_s * 1000))
        for epoch, stored in enumerate(channels, first):
            catalog.channels.replace(stored.channel, stored.epoch, epoch, stored.positions, now_s)
        return [stored.channel.name for stored in channels]
    finally:
        catalog.close()
        lease.release()
