"""The catalog's trials: which channels Spark died with, and which values were on trial at that moment.

Spark cannot report that a value has killed it. So a trial is stored before it runs and deleted when Spark survives it.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from tocsin.cluster.catalog.tables import trials
from tocsin.database.database import Database
from tocsin.model.ids import ChannelName


@dataclass(frozen=True, slots=True)
class OnTrial:
    """Values from one to another, both included."""

    kind: str
    """`subscriptions`, or `records` and a dataset."""
    first: int
    last: int


class TrialTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def deaths(self, channel: ChannelName) -> int:
        """Executions of the channel during which Spark or the process died, since the last one that succeeded."""
        rows = self._database.rows(sa.select(trials.c.deaths).where(trials.c.channel == channel))
        return rows[0].deaths if rows else 0

    def count_death(self, channel: ChannelName) -> None:
        with self._database.write() as connection:
            own = trials.c.channel == channel
            if connection.execute(sa.update(trials).where(own).values(deaths=trials.c.deaths + 1)).rowcount == 0:
                connection.execute(sa.insert(trials).values(channel=channel, deaths=1))

    def on_trial(self, channel: ChannelName) -> OnTrial | None:
        """The values of the last trial that Spark did not survive."""
        rows = self._database.rows(sa.select(trials).where(trials.c.channel == channel, trials.c.kind.is_not(None)))
        return OnTrial(rows[0].kind, rows[0].first, rows[0].last) if rows else None

    def begin(self, channel: ChannelName, values: OnTrial) -> None:
        self._set(channel, kind=values.kind, first=values.first, last=values.last)

    def survived(self, channel: ChannelName) -> None:
        self._set(channel, kind=None, first=None, last=None)

    def clear(self, channel: ChannelName) -> None:
        """Forget the deaths of a channel: an execution has succeeded, or the guilty value is set aside."""
        self._database.execute(sa.delete(trials).where(trials.c.channel == channel))

    def _set(self, channel: ChannelName, **values: object) -> None:
        self._database.execute(sa.update(trials).where(trials.c.channel == channel).values(**values))
