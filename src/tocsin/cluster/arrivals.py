"""Channels are told that NEW records wait for them, and Spark lets them match those before it brings more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from tocsin.cluster.live import LiveChannel
from tocsin.model.ids import ChannelName, DatasetName

MATCHING_S = 0.25
"""So long at most, Spark waits with the next micro-batch for continuous channels to match the one before.

What it brought earlier nobody could take up earlier, and reading small batches back to back takes the processor away
from those executions. A channel that is slower than this does not hold up what others get.
"""


class Arrivals:
    """Called from any thread. Without anybody to tell, nobody is told and nothing waits."""

    def __init__(
        self, channels: Callable[[], Iterable[LiveChannel]], arrived: Callable[[ChannelName], None] | None
    ) -> None:
        self._channels = channels
        self._arrived = arrived
        self._executed = threading.Condition()

    def tell(self, dataset: DatasetName, *, ahead: bool) -> None:
        """A dataset has more; `ahead` of its commit, only those that may match it then are told."""
        if self._arrived is not None:
            for live in self._channels():
                if dataset in live.positions and (live.matches_ahead or not ahead):
                    self._arrived(live.prepared.channel.name)

    def let_match(self, dataset: DatasetName, version: int) -> None:
        """Return when those who may have matched a version, or after a moment."""
        if self._arrived is not None:
            with self._executed:
                self._executed.wait_for(lambda: not self._behind(dataset, version), MATCHING_S)

    def executed(self) -> None:
        """A channel ran, and stands further than before if all went well."""
        with self._executed:
            self._executed.notify_all()

    def _behind(self, dataset: DatasetName, version: int) -> bool:
        return any(
            live.positions.get(dataset, version) < version and live.matches_ahead and live.subscribers.count
            for live in self._channels()
        )
