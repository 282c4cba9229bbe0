"""Where alerts become records of a dataset: what is let in, what an Update replaces, what a Cancel ends.

One record per area of each info. A STREAM dataset is append-only: every message leaves records of its own, which name
what they follow. A KEYED dataset has one record per alert and area: an Update takes the place of the alert it refers
to, and whatever of that it no longer mentions ends, as everything ends with a Cancel; there is no deleting from a KEYED
dataset, so what has ended says so (`msg_type` Cancel, `expires` in the past, or in the words of the `message`).

No lock of its own: the feed gateway drives it, one alert at a time. `remember` comes after the records were found
good and before they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec

from tocsin.cluster.cap.alert import Alert, Info, Reference, time_text
from tocsin.cluster.cap.columns import AlertColumns, Facts, Row, columns_of
from tocsin.cluster.cap.lineage import AlertLineage, KnownAlert, Root
from tocsin.cluster.cap.places import place_of
from tocsin.cluster.cap.reading import CapProblem, read_alert
from tocsin.cluster.feed.outcomes import KeyConflict
from tocsin.cluster.feed.recordforms import Malformed
from tocsin.model.entities import Dataset, DatasetKind


@dataclass(frozen=True, slots=True)
class AlertRecords:
    """What an alert leaves in the dataset, not yet stored."""

    body: bytes
    """A JSON array of records."""
    notices: list[str]
    """What the sender should know although the alert was taken."""
    known: KnownAlert


class AlertDesk:
    def __init__(self, dataset: Dataset, directory: Path) -> None:
        self._dataset = dataset
        self._keyed = dataset.kind is DatasetKind.KEYED
        self._columns = columns_of(dataset)
        self._lineage = AlertLineage(directory / "alerts.db")

    def read(self, body: bytes) -> Alert | Malformed:
        """The alert, if it is one and may enter this dataset."""
        alert = read_alert(body)
        if isinstance(alert, CapProblem):
            return Malformed(f"no CAP 1.2 alert: {alert}")
        if isinstance(self._columns, str):
            return Malformed(self._columns)
        refusal = _refusal(alert, self._columns, str(self._dataset.name))
        return alert if refusal is None else Malformed(refusal)

    def records(self, alert: Alert) -> AlertRecords | KeyConflict:
        """Its records, given what came before. `alert` is one that `read` let in."""
        columns = self._columns
        assert isinstance(columns, AlertColumns)
        digest = digest_of(alert)
        conflict = self._conflict(alert, digest, columns)
        if conflict is not None:
            return conflict
        found = [(one, self._lineage.find(one.sender, one.identifier)) for one in alert.references]
        notices = [
            f"refers to {one}, which {self._dataset.name} has not seen; taken all the same"
            for one, known in found
            if known is None
        ]
        root = _root(alert, found)
        if self._keyed and self._lineage.is_superseded(root, alert.sent):
            notices.append("a later message about this alert came before; it stays and nothing is stored")
            return AlertRecords(b"[]", notices, KnownAlert(alert.reference, digest, root, ()))
        earlier = _latest_rows(found)
        current, ended = self._rows(alert, columns, root, earlier)
        notices += _without_place(alert, columns)
        known = KnownAlert(alert.reference, digest, root, tuple(current))
        return AlertRecords(msgspec.json.encode([*current, *ended]), notices, known)

    def remember(self, records: AlertRecords, accepted_at_us: int) -> None:
        """Raises sqlite3.Error when the disk refuses."""
        self._lineage.remember(records.known, accepted_at_us)

    def forget(self, horizon_us: int) -> None:
        self._lineage.forget(horizon_us)

    def close(self) -> None:
        self._lineage.close()

    def _conflict(self, alert: Alert, digest: bytes, columns: AlertColumns) -> KeyConflict | None:
        """An identifier that already stands for something else would be taken for a repeat, and lost."""
        before = self._lineage.find(alert.sender, alert.identifier)
        if before is not None and before.digest != digest:
            return KeyConflict(
                f"{alert.identifier} was sent before by {alert.sender} at {time_text(before.reference.sent)} and said "
                "something else; give each message its own identifier, and refer to the earlier one with msgType Update"
            )
        if not columns.names_sender:
            other = self._lineage.other_sender(alert.sender, alert.identifier)
            if other is not None:
                return KeyConflict(
                    f"{alert.identifier} is the identifier of an alert of {other} here; send another identifier, or "
                    f"declare {self._dataset.name} with a column sender in its KEY"
                )
        return None

    def _rows(self, alert: Alert, columns: AlertColumns, root: Root, earlier: list[Row]) -> tuple[list[Row], list[Row]]:
        """(records that say what this message says, records of earlier ones that it ends)."""
        own = root if self._keyed else Root(alert.sender, alert.identifier)
        if not alert.infos and earlier:  # a Cancel that says nothing more
            if self._keyed:
                return [], [columns.ended(row, alert) for row in earlier]
            names = (
                [own.identifier] if len(earlier) == 1 else [f"{own.identifier}/{n}" for n in range(1, len(earlier) + 1)]
            )
            return [columns.ended(row, alert, name) for row, name in zip(earlier, names, strict=True)], []
        rows = [columns.row(facts) for facts in _facts(alert, own, all_languages=columns.has("language"))]
        if not self._keyed:
            return rows, []
        taken = {_key(row, self._dataset) for row in rows}
        left = [columns.ended(row, alert) for row in earlier if _key(row, self._dataset) not in taken]
        # The records of a Cancel are over: whoever refers to it ends nothing with it.
        return ([], [*rows, *left]) if alert.msg_type == "Cancel" else (rows, left)


def digest_of(alert: Alert) -> bytes:
    """Of what it says: blanks, comments and signatures in its XML do not count."""
    return blake2b(repr(alert).encode("utf-8", "surrogatepass"), digest_size=32).digest()


def _refusal(alert: Alert, columns: AlertColumns, dataset: str) -> str | None:
    """Why this dataset does not take such a message, if it does not."""
    if alert.status == "Draft":
        return "status Draft: a draft is not published; send it with status Actual when it is meant"
    if alert.status != "Actual" and not columns.has("status"):
        return (
            f"status {alert.status}: {dataset} has no column status, so this would look real to its subscribers; "
            "declare status STRING and let channels ask for status = 'Actual'"
        )
    if alert.scope != "Public" and not columns.has("scope"):
        return f"scope {alert.scope}: {dataset} has no column scope, so everybody would get it; declare scope STRING"
    if alert.msg_type in ("Ack", "Error"):
        return f"msgType {alert.msg_type} is an answer between systems; datasets take Alert, Update and Cancel"
    if not alert.infos and alert.msg_type != "Cancel":
        return f"expected an <info>: an {alert.msg_type} without one says nothing"
    if alert.msg_type == "Cancel" and not columns.shows_cancel:
        return (
            f"msgType Cancel: {dataset} has no column that could show it, so it would look like an alert; "
            "declare msg_type STRING, expires TIMESTAMP or message STRING"
        )
    return None


def _root(alert: Alert, found: list[tuple[Reference, KnownAlert | None]]) -> Root:
    """The first message of the chain; of several chains that come together, the oldest."""
    if not found:
        return Root(alert.sender, alert.identifier)
    first, known = min(found, key=lambda pair: pair[0].sent)
    return Root(first.sender, first.identifier) if known is None else known.root


def _latest_rows(found: list[tuple[Reference, KnownAlert | None]]) -> list[Row]:
    """What the referred messages left as current: of each chain, the last one's."""
    latest: dict[Root, KnownAlert] = {}
    for _, known in found:
        if known is not None and (known.root not in latest or latest[known.root].reference.sent < known.reference.sent):
            latest[known.root] = known
    return [row for known in latest.values() for row in known.rows]


def _facts(alert: Alert, own: Root, all_languages: bool) -> list[Facts]:
    """One for each area of each info; an info without areas counts as one without a place."""
    infos = list(enumerate(alert.infos, 1))
    if not all_languages:
        infos = [(number, info) for number, info in infos if info.language == _first_language(alert.infos)]
    if not infos:
        return [Facts(alert, own.identifier, own.sender)]
    pairs = [
        (number, info, place, area) for number, info in infos for place, area in enumerate(info.areas or (None,), 1)
    ]
    return [
        Facts(
            alert,
            own.identifier if len(pairs) == 1 else f"{own.identifier}/{number}/{place}",
            own.sender,
            info,
            area,
        )
        for number, info, place, area in pairs
    ]


def _first_language(infos: tuple[Info, ...]) -> str | None:
    """The sender's first choice: nobody is told the same thing twice, in two languages."""
    return infos[0].language if infos else None


def _without_place(alert: Alert, columns: AlertColumns) -> list[str]:
    if not (columns.has("lat") or columns.has("latitude")):
        return []
    areas = {area.area_desc: area for info in alert.infos for area in info.areas}
    return [
        f"area {name[:80]!r} has neither polygon nor circle: channels that ask for a place do not find it"
        for name, area in areas.items()
        if place_of(area) is None
    ]


def _key(row: Row, dataset: Dataset) -> tuple[object, ...]:
    return tuple(row[name] for name in dataset.key)
