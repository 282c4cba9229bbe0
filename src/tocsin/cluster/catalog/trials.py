"""The catalog's trials: which channels Spark died with, and which values were on trial at that moment.

Spark cannot report that a value has killed it. So a trial is stored before it runs and deleted when Spark survives it.
Deaths while one value alone was on trial are evidence against that value, until Spark survives with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tocsin.cluster.catalog.tables import suspects, trials
from tocsin.database.database import Database
from tocsin.model.ids import ChannelName


@dataclass(frozen=True, slots=True)
class OnTrial:
    """Values from one to another, both included."""

    kind: str
    """`subscriptions`, or `records` and a dataset."""
    first: int
    last: int

    @property
    def is_single(self) -> bool:
        return self.first == self.last


class TrialTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def deaths(self, channel: ChannelName) -> int:
        """The evidence of deaths of Spark during executions of the channel, since the last one that succeeded."""
        rows = self._database.rows(sa.select(trials.c.deaths).where(trials.c.channel == channel))
        return rows[0].deaths if rows else 0

    def add_death(self, channel: ChannelName, evidence: int) -> None:
        """Add a death of Spark: evidence against the channel, and against the value that was alone on trial."""
        with self._database.write() as connection:
            own = trials.c.channel == channel
            if connection.execute(sa.update(trials).where(own).values(deaths=trials.c.deaths + evidence)).rowcount == 0:
                connection.execute(sa.insert(trials).values(channel=channel, deaths=evidence))
            group = _on_trial(connection, channel)
            if group is not None and group.is_single:
                _add_evidence(connection, channel, group, evidence)

    def on_trial(self, channel: ChannelName) -> OnTrial | None:
        """The values of the last trial that Spark did not survive."""
        with self._database.read() as connection:
            return _on_trial(connection, channel)

    def evidence(self, channel: ChannelName, group: OnTrial | None) -> int:
        """The evidence against the one value of a group; 0 for a larger group."""
        if group is None or not group.is_single:
            return 0
        rows = self._database.rows(sa.select(suspects.c.evidence).where(_is_suspect(channel, group)))
        return rows[0].evidence if rows else 0

    def begin(self, channel: ChannelName, values: OnTrial) -> None:
        self._set(channel, kind=values.kind, first=values.first, last=values.last)

    def survived(self, channel: ChannelName) -> None:
        """End the trial: Spark lives. There is no evidence any more if one value alone was on trial."""
        with self._database.write() as connection:
            group = _on_trial(connection, channel)
            if group is not None and group.is_single:
                connection.execute(sa.delete(suspects).where(_is_suspect(channel, group)))
            ended = {"kind": None, "first": None, "last": None}
            connection.execute(sa.update(trials).where(trials.c.channel == channel).values(ended))

    def clear(self, channel: ChannelName) -> None:
        """Forget the deaths of a channel: an execution has succeeded, or the guilty value is set aside."""
        with self._database.write() as connection:
            forget_trials(connection, channel)

    def _set(self, channel: ChannelName, **values: object) -> None:
        self._database.execute(sa.update(trials).where(trials.c.channel == channel).values(**values))


def forget_trials(connection: Connection, channel: ChannelName) -> None:
    connection.execute(sa.delete(trials).where(trials.c.channel == channel))
    connection.execute(sa.delete(suspects).where(suspects.c.channel == channel))


def _on_trial(connection: Connection, channel: ChannelName) -> OnTrial | None:
    row = connection.execute(sa.select(trials).where(trials.c.channel == channel, trials.c.kind.is_not(None))).first()
    return None if row is None else OnTrial(row.kind, row.first, row.last)


def _is_suspect(channel: ChannelName, group: OnTrial) -> sa.ColumnElement[bool]:
    return sa.and_(suspects.c.channel == channel, suspects.c.kind == group.kind, suspects.c.value == group.first)


def _add_evidence(connection: Connection, channel: ChannelName, group: OnTrial, evidence: int) -> None:
    found = sa.update(suspects).where(_is_suspect(channel, group)).values(evidence=suspects.c.evidence + evidence)
    if connection.execute(found).rowcount == 0:
        values = {"channel": channel, "kind": group.kind, "value": group.first, "evidence": evidence}
        connection.execute(sa.insert(suspects).values(values))
