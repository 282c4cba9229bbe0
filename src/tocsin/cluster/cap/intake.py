"""Converts CAP alerts to records of a dataset: which alerts are accepted, what an Update replaces, what a Cancel ends.

An alert becomes one record per area of each info. A STREAM dataset is append-only: every message adds its own records,
which name the messages they refer to. A KEYED dataset has one record per alert and area. An Update replaces the records
of the alert it refers to and ends those that it no longer mentions; a Cancel ends all of them. Records of a KEYED
dataset cannot be deleted, so an ended record is marked: `msg_type` Cancel, `expires` in the past, or a prefix of the
`message`.

This module has no lock: the feed gateway calls it for one alert at a time. The gateway calls `remember` after the
records have passed their checks and before it stores them.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from tocsin.cluster.cap.alert import Alert, Reference, time_text
from tocsin.cluster.cap.columns import AlertColumns, RecordFacts, Row, columns_of
from tocsin.cluster.cap.lineage import AlertLineage, ChainRoot, KnownAlert
from tocsin.cluster.cap.places import bounding_circle
from tocsin.cluster.cap.reading import CapProblem, read_alert
from tocsin.cluster.cap.shared_lineage import SharedLineage
from tocsin.model.entities import Dataset, DatasetKind


@dataclass(frozen=True, slots=True)
class AlertRefused:
    """The document is no valid alert, or the dataset does not accept such an alert."""

    reason: str


@dataclass(frozen=True, slots=True)
class AlertConflict:
    """The identifier of the alert belongs to a different message already."""

    reason: str


@dataclass(frozen=True, slots=True)
class AlertRecords:
    """The records of an alert, not yet stored."""

    body: bytes
    """A JSON array of records."""
    notices: list[str]
    """Warnings for the sender about an accepted alert."""
    known: KnownAlert


class AlertIntake:
    def __init__(self, dataset: Dataset, lineage: AlertLineage | SharedLineage) -> None:
        self._dataset = dataset
        self._keyed = dataset.kind is DatasetKind.KEYED
        self._columns = columns_of(dataset)
        self._lineage = lineage

    def read(self, body: bytes) -> Alert | AlertRefused:
        """The alert, if it is valid and this dataset accepts it."""
        alert = read_alert(body)
        if isinstance(alert, CapProblem):
            return AlertRefused(f"no CAP 1.2 alert: {alert}")
        if isinstance(self._columns, str):
            return AlertRefused(self._columns)
        reason = _refusal_reason(alert, self._columns, str(self._dataset.name))
        return alert if reason is None else AlertRefused(reason)

    def records(self, alert: Alert) -> AlertRecords | AlertConflict:
        """The records of an alert that `read` has returned. They depend on the messages accepted before it."""
        columns = self._columns
        assert isinstance(columns, AlertColumns)
        digest = alert_digest(alert)
        conflict = self._conflict(alert, digest, columns)
        if conflict is not None:
            return conflict
        referred = [
            (reference, self._lineage.find(reference.sender, reference.identifier)) for reference in alert.references
        ]
        notices = [
            f"refers to {reference}, which {self._dataset.name} has not seen; taken all the same"
            for reference, known in referred
            if known is None
        ]
        root = _root(alert, referred)
        if self._keyed and self._lineage.is_superseded(root, alert.sent):
            notices.append("a later message about this alert was accepted before; this one is not stored")
            return AlertRecords(b"[]", notices, KnownAlert(alert.reference, digest, root, ()))
        earlier = _latest_rows(referred)
        current, ended = self._rows(alert, columns, root, earlier)
        notices += _notices_without_shape(alert, columns)
        known = KnownAlert(alert.reference, digest, root, tuple(current))
        return AlertRecords(msgspec.json.encode([*current, *ended]), notices, known)

    def remember(self, records: AlertRecords, accepted_at_us: int) -> None:
        """Store the alert's place in its chain. Raises sqlite3.Error or SQLAlchemyError if that fails."""
        self._lineage.remember(records.known, accepted_at_us)

    def forget(self, horizon_us: int) -> None:
        self._lineage.forget(horizon_us)

    def close(self) -> None:
        self._lineage.close()

    def _conflict(self, alert: Alert, digest: bytes, columns: AlertColumns) -> AlertConflict | None:
        """Refuse an identifier of a different message: the gateway would drop the alert as a repeat."""
        before = self._lineage.find(alert.sender, alert.identifier)
        if before is not None and before.digest != digest:
            return AlertConflict(
                f"{alert.identifier} was sent before by {alert.sender} at {time_text(before.reference.sent)} with "
                "other content; give each message its own identifier, and refer to the earlier one with msgType Update"
            )
        if not columns.names_sender:
            other = self._lineage.other_sender(alert.sender, alert.identifier)
            if other is not None:
                return AlertConflict(
                    f"{alert.identifier} is the identifier of an alert of {other} here; send another identifier, or "
                    f"declare {self._dataset.name} with a column sender in its KEY"
                )
        return None

    def _rows(
        self, alert: Alert, columns: AlertColumns, root: ChainRoot, earlier: list[Row]
    ) -> tuple[list[Row], list[Row]]:
        """(records of this message, earlier records that this message ends)."""
        own = root if self._keyed else ChainRoot(alert.sender, alert.identifier)
        if not alert.infos and earlier:  # a Cancel without an info
            if self._keyed:
                return [], [columns.ended(row, alert) for row in earlier]
            ids = [f"{own.identifier}/{number}" for number in range(1, len(earlier) + 1)]
            if len(earlier) == 1:
                ids = [own.identifier]
            return [columns.ended(row, alert, record_id) for row, record_id in zip(earlier, ids, strict=True)], []
        rows = [columns.row(facts) for facts in _facts(alert, own, all_languages=columns.has("language"))]
        if not self._keyed:
            return rows, []
        replaced = {_key(row, self._dataset) for row in rows}
        ended = [columns.ended(row, alert) for row in earlier if _key(row, self._dataset) not in replaced]
        # The records of a Cancel have ended: a later message that refers to it has nothing to end.
        return ([], [*rows, *ended]) if alert.msg_type == "Cancel" else (rows, ended)


def alert_digest(alert: Alert) -> bytes:
    """32 bytes from the alert's values: blanks, comments and signatures in its XML do not count.

    Digests are stored, and `repr` contains the class and field names of `alert.py`: renaming one changes all digests.
    """
    return blake2b(repr(alert).encode("utf-8", "surrogatepass"), digest_size=32).digest()


def _refusal_reason(alert: Alert, columns: AlertColumns, dataset: str) -> str | None:
    """Why this dataset does not accept the message; None if it does."""
    if alert.status == "Draft":
        return "status Draft: a draft is not published; send it with status Actual when it is final"
    if alert.status != "Actual" and not columns.has("status"):
        return (
            f"status {alert.status}: {dataset} has no column status, so this would look real to its subscribers; "
            "declare status STRING and let channels ask for status = 'Actual'"
        )
    if alert.scope != "Public" and not columns.has("scope"):
        return (
            f"scope {alert.scope}: {dataset} has no column scope, so all its subscribers would get it; "
            "declare scope STRING"
        )
    if alert.msg_type in ("Ack", "Error"):
        return f"msgType {alert.msg_type} is an answer between systems; datasets take Alert, Update and Cancel"
    if not alert.infos and alert.msg_type != "Cancel":
        return f"expected an <info>: an {alert.msg_type} without one has no content"
    if alert.msg_type == "Cancel" and not columns.shows_cancel:
        return (
            f"msgType Cancel: {dataset} has no column that could show it, so it would look like an alert; "
            "declare msg_type STRING, expires TIMESTAMP or message STRING"
        )
    return None


def _root(alert: Alert, referred: list[tuple[Reference, KnownAlert | None]]) -> ChainRoot:
    """The first message of the chain. If the alert refers to several chains, the oldest one counts."""
    if not referred:
        return ChainRoot(alert.sender, alert.identifier)
    first, known = min(referred, key=lambda pair: pair[0].sent)
    return ChainRoot(first.sender, first.identifier) if known is None else known.root


def _latest_rows(referred: list[tuple[Reference, KnownAlert | None]]) -> list[Row]:
    """The current records of the referenced messages: for each chain, those of its latest message."""
    latest: dict[ChainRoot, KnownAlert] = {}
    for _, known in referred:
        if known is not None and (known.root not in latest or latest[known.root].reference.sent < known.reference.sent):
            latest[known.root] = known
    return [row for known in latest.values() for row in known.rows]


def _facts(alert: Alert, own: ChainRoot, all_languages: bool) -> list[RecordFacts]:
    """The facts of each record: one record for each area of each info, and one for an info without areas."""
    infos = list(enumerate(alert.infos, 1))
    if not all_languages:
        # Only the sender's first language, so that subscribers do not get the same alert twice.
        infos = [(number, info) for number, info in infos if info.language == alert.infos[0].language]
    if not infos:
        return [RecordFacts(alert, own.identifier, own.sender)]
    parts = [
        (number, info, area_number, area)
        for number, info in infos
        for area_number, area in enumerate(info.areas or (None,), 1)
    ]
    return [
        RecordFacts(
            alert,
            own.identifier if len(parts) == 1 else f"{own.identifier}/{number}/{area_number}",
            own.sender,
            info,
            area,
        )
        for number, info, area_number, area in parts
    ]


def _notices_without_shape(alert: Alert, columns: AlertColumns) -> list[str]:
    if not (columns.has("lat") or columns.has("latitude")):
        return []
    areas = {area.area_desc: area for info in alert.infos for area in info.areas}
    return [
        f"area {name[:80]!r} has neither polygon nor circle: channels that select by location do not find it"
        for name, area in areas.items()
        if bounding_circle(area) is None
    ]


def _key(row: Row, dataset: Dataset) -> tuple[object, ...]:
    return tuple(row[name] for name in dataset.key)
