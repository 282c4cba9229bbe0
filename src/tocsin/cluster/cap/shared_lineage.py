"""The chains of alerts of a dataset with a shared log: `AlertLineage` in the catalog, for all its gateways."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from tocsin.cluster.cap.alert import Reference
from tocsin.cluster.cap.lineage import ChainRoot, KnownAlert
from tocsin.cluster.catalog.log_alerts import AlertRow, LogAlertTable


class SharedLineage:
    """Thread-safe. Has the methods of `AlertLineage`; they raise SQLAlchemyError if the catalog does not answer."""

    def __init__(self, table: LogAlertTable, log: int) -> None:
        self._table = table
        self._log = log

    def find(self, sender: str, identifier: str) -> KnownAlert | None:
        row = self._table.find(self._log, sender, identifier)
        if row is None:
            return None
        reference = Reference(row.sender, row.identifier, datetime.fromtimestamp(row.sent_s, UTC))
        root = ChainRoot(row.root_sender, row.root_identifier)
        return KnownAlert(reference, row.digest, root, tuple(msgspec.json.decode(row.rows)))

    def other_sender(self, sender: str, identifier: str) -> str | None:
        return self._table.other_sender(self._log, sender, identifier)

    def is_superseded(self, root: ChainRoot, sent: datetime) -> bool:
        return self._table.has_later(self._log, root.sender, root.identifier, int(sent.timestamp()))

    def remember(self, alert: KnownAlert, accepted_at_us: int) -> None:
        reference, root = alert.reference, alert.root
        sent_s, rows = int(reference.sent.timestamp()), msgspec.json.encode(alert.rows)
        row = AlertRow(reference.identifier, reference.sender, sent_s, alert.digest, root.identifier, root.sender, rows)
        self._table.add(self._log, row, accepted_at_us)

    def forget(self, horizon_us: int) -> None:
        self._table.forget(self._log, horizon_us)

    def close(self) -> None:
        """The catalog stays open for others."""
