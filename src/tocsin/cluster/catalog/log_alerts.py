"""The catalog's CAP alerts of shared logs: the rows of `cap.lineage`, for all gateways of a dataset."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from tocsin.cluster.catalog.tables import log_alerts
from tocsin.database.database import Database, insert_many


class AlertRow(NamedTuple):
    identifier: str
    sender: str
    sent_s: int
    digest: bytes
    root_identifier: str
    root_sender: str
    rows: bytes
    """The records of the alert that are current, a JSON array."""


class LogAlertTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, log: int, sender: str, identifier: str) -> AlertRow | None:
        known = log_alerts.c
        query = sa.select(*(known[name] for name in AlertRow._fields)).where(
            known.log == log, known.identifier == identifier, known.sender == sender
        )
        return next((AlertRow._make(row) for row in self._database.rows(query)), None)

    def other_sender(self, log: int, sender: str, identifier: str) -> str | None:
        """Another sender that has used this identifier, or None."""
        known = log_alerts.c
        query = sa.select(known.sender).where(known.log == log, known.identifier == identifier, known.sender != sender)
        return next((str(row.sender) for row in self._database.rows(query.limit(1))), None)

    def has_later(self, log: int, root_sender: str, root_identifier: str, sent_s: int) -> bool:
        """True if a message of this chain was sent later."""
        known = log_alerts.c
        query = sa.select(known.sent_s).where(
            known.log == log,
            known.root_identifier == root_identifier,
            known.root_sender == root_sender,
            known.sent_s > sent_s,
        )
        return bool(self._database.rows(query.limit(1)))

    def add(self, log: int, row: AlertRow, at_us: int) -> None:
        """Add the alert unless the table has it."""
        with self._database.write() as connection:
            values = {"log": log, "at_us": at_us, **row._asdict()}
            insert_many(connection, log_alerts, [values], ignore_existing=True)

    def forget(self, log: int, before_us: int) -> None:
        old = (log_alerts.c.log == log) & (log_alerts.c.at_us < before_us)
        self._database.execute(sa.delete(log_alerts).where(old))
