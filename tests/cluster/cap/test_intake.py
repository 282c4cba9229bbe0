"""Alerts become records of a dataset: through the real feed gateway, read back from its log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cap.alerts import SQUARE, alert, area, at, info, reference
from tocsin.cluster.catalog import Catalog
from tocsin.cluster.feed.feedlog import FeedLog
from tocsin.cluster.feed.feedlog_reader import FeedLogWriteFailed
from tocsin.cluster.feed.gateway import Accepted, FeedGateway, FeedLimits, KeyConflict, Malformed, RecordForm, TooLarge
from tocsin.cluster.feed.shared_gateway import Gateway, SharedGateway, new_seed
from tocsin.cluster.store.storage import Storage
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema

EXAMPLES = Path(__file__).parents[3] / "examples" / "emergency"
CITY = Schema.of(
    report_id="STRING",
    kind="STRING",
    severity="INT",
    lat="DOUBLE",
    lon="DOUBLE",
    message="STRING",
    reported_at="TIMESTAMP",
)
FULL = Schema.of(
    identifier="STRING", sender="STRING", sent="TIMESTAMP", status="STRING", msgType="STRING", scope="STRING",
    event="STRING", category="ARRAY<STRING>", urgency="STRING", severity="STRING", certainty="INT", headline="STRING",
    description="STRING", instruction="STRING", area_desc="STRING", effective="TIMESTAMP", onset="TIMESTAMP",
    expires="TIMESTAMP", lat="DOUBLE", lon="DOUBLE", radius_m="DOUBLE", polygon="STRING", references="STRING",
    mine="INT",
)  # fmt: skip


class AlertDataset:
    """A dataset behind its gateway."""

    def __init__(self, log: str, directory: Path, schema: Schema, kind: DatasetKind, *key: str, **limits: Any) -> None:
        self._dataset = Dataset(DatasetName("D"), kind, schema, key)
        self._directory, self._limits = directory, FeedLimits(**limits)
        self._catalog: Catalog | None = None
        if log == "shared":
            directory.mkdir()
            self._catalog = Catalog(f"sqlite:///{directory / 'catalog.sqlite'}")
            self._catalog.datasets.create(self._dataset, 1, new_seed())
        self.gateway = self._opened()

    def _opened(self) -> Gateway:
        def now_s() -> float:
            return 1_800_000_000.0

        if self._catalog is None:
            return FeedGateway(self._dataset, self._directory, self._limits, now_s)
        state = self._catalog.logs.state(self._dataset.name, 1)
        assert state is not None
        storage = Storage(str(self._directory))
        return SharedGateway(self._dataset, 1, self._catalog, storage, self._limits, now_s, state)

    def close(self) -> None:
        self.gateway.close()
        if self._catalog is not None:
            self._catalog.close()

    def send(self, body: bytes, key: str | None = None) -> Accepted:
        outcome, group = self.gateway.accept_into_group(body, RecordForm.CAP, key)
        assert isinstance(outcome, Accepted), outcome
        self.gateway.sync()
        answer = group.answer_to(outcome)
        assert group.stored and isinstance(answer, Accepted), answer
        return answer

    def refuse(self, body: bytes) -> str:
        outcome = self.gateway.accept(body, RecordForm.CAP)
        assert isinstance(outcome, Malformed | KeyConflict | TooLarge), outcome
        return outcome.reason

    def restart(self) -> None:
        self.gateway.close()
        self.gateway = self._opened()

    def log(self) -> list[dict[str, Any]]:
        frames, _ = self.gateway.log_reader().read(0, 1 << 20)
        return [json.loads(line) for frame in frames for line in frame.payload.split(b"\n") if line]

    def state(self, *key: str) -> dict[Any, dict[str, Any]]:
        """The latest record per key, as a KEYED dataset shows it."""
        return {tuple(row[name] for name in key) if len(key) > 1 else row[key[0]]: row for row in self.log()}


Opened = Callable[..., AlertDataset]


@pytest.fixture(params=["local", "shared"])
def open_dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """With a local log, and with a shared one."""
    opened: list[AlertDataset] = []

    def open_next(schema: Schema, kind: DatasetKind, *key: str, **limits: Any) -> AlertDataset:
        opened.append(AlertDataset(request.param, tmp_path / f"{len(opened)}", schema, kind, *key, **limits))
        return opened[-1]

    yield open_next
    for dataset in opened:
        dataset.close()


def stream(open_dataset: Opened) -> AlertDataset:
    return open_dataset(CITY, DatasetKind.STREAM, "report_id")


def keyed(open_dataset: Opened) -> AlertDataset:
    return open_dataset(FULL, DatasetKind.KEYED, "identifier")


def test_alert_becomes_a_report_of_the_emergency_city(open_dataset: Opened) -> None:
    city = stream(open_dataset)
    assert city.send((EXAMPLES / "alert.xml").read_bytes()).accepted == 1
    assert city.log() == [
        {
            "report_id": "HEL-2026-0117",
            "kind": "fire",
            "severity": 4,
            "lat": 60.1678,
            "lon": 24.9561,
            "message": "Warehouse fire at the harbour\nThick smoke drifts over the harbour and the streets behind it.",
            "reported_at": "2026-11-15T16:00:00Z",
        }
    ]


def test_column_named_after_an_element_is_filled_in_its_type(open_dataset: Opened) -> None:
    full = open_dataset(FULL, DatasetKind.STREAM)
    more = "<onset>2026-11-15T19:00:00+02:00</onset><headline>H</headline><instruction>I</instruction>"
    full.send(alert(info(area(f"<polygon>{SQUARE}</polygon>", "Square"), more=more), status="Test"))
    [row] = full.log()
    assert row["lat"] == pytest.approx(60.15) and row["lon"] == pytest.approx(24.95) and 6_000 < row["radius_m"] < 6_300
    for name in ("lat", "lon", "radius_m"):
        del row[name]
    assert row == {
        "identifier": "A1", "sender": "desk@rescue.example", "sent": "2026-11-15T16:00:00Z", "status": "Test",
        "msgType": "Alert", "scope": "Public", "event": "fire", "category": ["Fire", "Rescue"], "urgency": "Immediate",
        "severity": "Severe", "certainty": 3, "headline": "H", "description": None, "instruction": "I",
        "area_desc": "Square", "effective": "2026-11-15T16:00:00Z", "onset": "2026-11-15T17:00:00Z", "expires": None,
        "polygon": "POLYGON ((24.9 60.1, 25.0 60.1, 25.0 60.2, 24.9 60.2, 24.9 60.1))", "references": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "number"), [("Unknown", 0), ("Minor", 2), ("Moderate", 3), ("Severe", 4), ("Extreme", 5)]
)
def test_severity_becomes_a_rank_in_a_numeric_column(open_dataset: Opened, word: str, number: int) -> None:
    city = stream(open_dataset)
    city.send(alert(info(severity=word)))
    assert city.log()[0]["severity"] == number


def test_each_area_of_each_info_becomes_one_record(open_dataset: Opened) -> None:
    city = stream(open_dataset)
    city.send(alert(info(area(desc="a"), area(desc="b")), info(event="smoke")))
    assert [(row["report_id"], row["kind"], row["lat"]) for row in city.log()] == [
        ("A1/1/1", "fire", 60.17),
        ("A1/1/2", "fire", 60.17),
        ("A1/2/1", "smoke", None),
    ]


def test_only_the_first_language_is_stored_without_a_language_column(open_dataset: Opened) -> None:
    body = alert(info(event="fire", language="en-GB"), info(event="palo", language="fi"))
    city = stream(open_dataset)
    city.send(body)
    assert [(row["report_id"], row["kind"]) for row in city.log()] == [("A1", "fire")]
    both = open_dataset(Schema.of(alert_id="STRING", event="STRING", language="STRING"), DatasetKind.STREAM, "alert_id")
    both.send(body)
    assert [(row["alert_id"], row["language"]) for row in both.log()] == [("A1/1/1", "en-GB"), ("A1/2/1", "fi")]


def test_long_description_is_cut_only_in_the_message_column(open_dataset: Opened) -> None:
    body = alert(info(more=f"<description>{'long ' * 2_000}</description>"))
    city, full = stream(open_dataset), open_dataset(FULL, DatasetKind.STREAM)
    city.send(body)
    full.send(body)
    assert len(city.log()[0]["message"]) <= 2_000 and city.log()[0]["message"].endswith("…")
    assert len(full.log()[0]["description"]) == 9_999


def test_repeated_alert_is_stored_once_in_every_kind_of_dataset(open_dataset: Opened) -> None:
    body = alert(info(area()))
    other_spelling = body.replace(b"\n", b"\n   ").replace(b"</alert>", b"<!-- again --></alert>")
    city = stream(open_dataset)
    assert (city.send(body).accepted, city.send(body, "key").duplicates, city.send(other_spelling).duplicates) == (
        1,
        1,
        1,
    )
    for dataset in (keyed(open_dataset), open_dataset(FULL, DatasetKind.STREAM)):
        first, again = dataset.send(body, "one key"), dataset.send(other_spelling, "another key")
        assert (first.accepted, first.replayed, again.accepted, again.replayed) == (1, False, 1, True)
        dataset.restart()
        assert dataset.send(body).replayed and len(dataset.log()) == 1


def test_identifier_of_a_different_message_is_a_conflict(open_dataset: Opened) -> None:
    for dataset in (stream(open_dataset), keyed(open_dataset)):
        dataset.send(alert(info()))
        assert "with other content" in dataset.refuse(alert(info(event="flood")))
        assert "at 2026-11-15T16:00:00-00:00" in dataset.refuse(alert(info(), sent=at(5)))
        assert "an alert of desk@rescue.example" in dataset.refuse(alert(info(), sender="other@x.example"))
        assert len(dataset.log()) == 1
    apart = open_dataset(FULL, DatasetKind.KEYED, "sender", "identifier")
    apart.send(alert(info()))
    apart.send(alert(info(), sender="other@x.example"))
    assert len(apart.state("sender", "identifier")) == 2


def test_stream_keeps_every_message_with_its_type(open_dataset: Opened) -> None:
    city, full = stream(open_dataset), open_dataset(FULL, DatasetKind.STREAM)
    for dataset in (city, full):
        dataset.send(alert(info(area(), more="<headline>Fire</headline>")))
        dataset.send(
            alert(
                info(area(), more="<headline>Worse</headline>", severity="Extreme"),
                identifier="A2",
                sent=at(5),
                msg_type="Update",
                references=reference("A1"),
            )
        )
        dataset.send(
            alert(identifier="A3", sent=at(9), msg_type="Cancel", references=f"{reference('A1')} {reference('A2', 5)}")
        )
    assert [(row["report_id"], row["message"], row["severity"], row["lat"]) for row in city.log()] == [
        ("A1", "Fire", 4, 60.17),
        ("A2", "Update: Worse", 5, 60.17),
        ("A3", "Cancelled: Worse", 5, 60.17),
    ]
    assert [(row["identifier"], row["msgType"], row["references"]) for row in full.log()] == [
        ("A1", "Alert", None),
        ("A2", "Update", reference("A1")),
        ("A3", "Cancel", f"{reference('A1')} {reference('A2', 5)}"),
    ]
    assert full.log()[2]["expires"] == "2026-11-15T16:09:00Z" == full.log()[2]["sent"]


def test_example_cancel_ends_the_example_alert(open_dataset: Opened) -> None:
    city = stream(open_dataset)
    city.send((EXAMPLES / "alert.xml").read_bytes())
    assert city.send((EXAMPLES / "alert-cancel.xml").read_bytes()).notices == []
    before, cancel = city.log()
    assert cancel["message"] == f"Cancelled: {before['message']}" and cancel["kind"] == "fire"
    assert (cancel["report_id"], cancel["lat"]) == ("HEL-2026-0118", before["lat"])


def test_keyed_dataset_stores_a_chain_under_its_first_identifier(open_dataset: Opened) -> None:
    dataset = keyed(open_dataset)
    dataset.send(alert(info(area())))
    dataset.send(
        alert(
            info(area(), severity="Minor"), identifier="A2", sent=at(5), msg_type="Update", references=reference("A1")
        )
    )
    dataset.restart()
    # The alert refers only to the second message, as many senders do.
    dataset.send(
        alert(
            info(area(), severity="Extreme"),
            identifier="A3",
            sent=at(9),
            msg_type="Update",
            references=reference("A2", 5),
        )
    )
    assert {key: (row["severity"], row["msgType"]) for key, row in dataset.state("identifier").items()} == {
        "A1": ("Extreme", "Update")
    }
    dataset.send(alert(identifier="A4", sent=at(12), msg_type="Cancel", references=reference("A3", 9)))
    [(key, row)] = dataset.state("identifier").items()
    assert (key, row["msgType"], row["severity"], row["expires"]) == ("A1", "Cancel", "Extreme", "2026-11-15T16:12:00Z")


def test_update_ends_areas_that_it_no_longer_mentions(open_dataset: Opened) -> None:
    dataset = keyed(open_dataset)
    dataset.send(alert(info(area(desc="a"), area(desc="b"))))
    dataset.send(
        alert(info(area(desc="a")), identifier="A2", sent=at(5), msg_type="Update", references=reference("A1"))
    )
    state = {key: (row["area_desc"], row["msgType"]) for key, row in dataset.state("identifier").items()}
    assert state == {"A1/1/1": ("a", "Cancel"), "A1/1/2": ("b", "Cancel"), "A1": ("a", "Update")}
    stored = len(dataset.log())
    dataset.send(
        alert(
            info(area(desc="c")),
            identifier="A3",
            sent=at(7),
            msg_type="Update",
            references=f"{reference('A1')} {reference('A2', 5)}",
        )
    )
    assert len(dataset.log()) == stored + 1, "an ended record is not ended again"


def test_alert_that_arrives_after_its_update_does_not_replace_it(open_dataset: Opened) -> None:
    dataset = keyed(open_dataset)
    update = alert(info(severity="Minor"), identifier="A2", sent=at(5), msg_type="Update", references=reference("A1"))
    [notice] = dataset.send(update).notices
    assert notice == f"refers to {reference('A1')}, which D has not seen; taken all the same"
    late = dataset.send(alert(info()))
    assert late.accepted == 0 and "a later message about this alert was accepted before" in late.notices[0]
    assert dataset.state("identifier")["A1"]["severity"] == "Minor"


def test_update_of_two_alerts_replaces_the_older_and_ends_the_other(open_dataset: Opened) -> None:
    dataset = keyed(open_dataset)
    dataset.send(alert(info(), identifier="A1"))
    dataset.send(alert(info(), identifier="B1", sent=at(1)))
    both = f"{reference('B1', 1)} {reference('A1')}"
    dataset.send(alert(info(event="both"), identifier="C1", sent=at(5), msg_type="Update", references=both))
    state = {key: (row["event"], row["msgType"]) for key, row in dataset.state("identifier").items()}
    assert state == {"A1": ("both", "Update"), "B1": ("fire", "Cancel")}


def test_retry_after_a_failed_sync_stores_the_same_records(
    open_dataset: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = keyed(open_dataset)
    dataset.send(alert(info(area(desc="a"), area(desc="b"))))
    update = alert(info(area()), identifier="A2", sent=at(5), msg_type="Update", references=reference("A1"))
    with monkeypatch.context() as broken:

        def refuse(*_: object) -> None:
            raise OSError("full")

        broken.setattr(FeedLog, "sync", refuse)
        broken.setattr("tocsin.cluster.feed.shared_gateway.write_object", refuse)
        assert isinstance(dataset.gateway.accept(update, RecordForm.CAP), Accepted)
        with pytest.raises((OSError, FeedLogWriteFailed), match="full"):
            dataset.gateway.sync()
    assert dataset.send(update).accepted == 3 and dataset.send(update).replayed
    assert {key: row["msgType"] for key, row in dataset.state("identifier").items()} == {
        "A1": "Update",
        "A1/1/1": "Cancel",
        "A1/1/2": "Cancel",
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (alert(info(), status="Draft"), "a draft is not published"),
        (alert(info(), status="Exercise"), "no column status, so this would look real"),
        (alert(info(), status="Test"), "declare status STRING"),
        (
            alert(info(), scope="Private", more="<addresses>a@b</addresses>"),
            "no column scope, so all its subscribers would get it",
        ),
        (alert(info(), msg_type="Ack", references=reference("A0")), "an answer between systems"),
        (alert(), "expected an <info>"),
        (b"<alert/>", "no CAP 1.2 alert: line 1, <alert>: expected"),
    ],
)
def test_alert_that_would_mislead_subscribers_is_refused(open_dataset: Opened, body: bytes, reason: str) -> None:
    city = stream(open_dataset)
    assert reason in city.refuse(body)
    assert city.log() == []


@pytest.mark.parametrize(
    ("schema", "key", "reason"),
    [
        (Schema.of(user_id="STRING", lat="DOUBLE"), "user_id", "D needs user_id in every record (KEY)"),
        (Schema.of(identifier="STRING", severity="BOOLEAN"), "identifier", "D.severity is BOOLEAN: INT or STRING"),
        (Schema.of(identifier="STRING", sent="BIGINT"), "identifier", "D.sent is BIGINT: TIMESTAMP or STRING"),
        (Schema.of(identifier="STRING", lat="INT"), "identifier", "D.lat is INT: DOUBLE or FLOAT"),
        (Schema.of(identifier="BIGINT"), "identifier", "D.identifier is BIGINT: STRING"),
        (Schema.of(event="STRING"), None, "no column for an alert's identifier"),
    ],
)
def test_dataset_that_cannot_take_alerts_reports_what_it_lacks(
    open_dataset: Opened, schema: Schema, key: str | None, reason: str
) -> None:
    dataset = open_dataset(schema, DatasetKind.STREAM, *([key] if key else []))
    assert reason in dataset.refuse(alert(info()))


def test_cancel_needs_a_column_that_shows_it(open_dataset: Opened) -> None:
    bare = open_dataset(Schema.of(identifier="STRING", event="STRING"), DatasetKind.STREAM, "identifier")
    assert "would look like an alert" in bare.refuse(alert(info(), msg_type="Cancel", references=reference("A0")))


def test_area_without_shape_is_accepted_with_a_notice(open_dataset: Opened) -> None:
    answer = stream(open_dataset).send(
        alert(info(area("<geocode><valueName>S</valueName><value>1</value></geocode>", "County")))
    )
    assert answer.accepted == 1 and "'County' has neither polygon nor circle" in answer.notices[0]


def test_alert_that_is_too_large_stores_nothing(open_dataset: Opened) -> None:
    full = open_dataset(FULL, DatasetKind.STREAM, "identifier", record_bytes=2_000)
    assert "record bytes" in full.refuse(alert(info(more=f"<description>{'x' * 5_000}</description>")))
    assert full.send(alert(info())).accepted == 1, "its identifier is still free"


def test_alert_is_forgotten_after_the_retention(open_dataset: Opened, tmp_path: Path) -> None:
    now_s = 1_800_000_000.0
    dataset = Dataset(DatasetName("D"), DatasetKind.STREAM, CITY, ("report_id",), retain_s=60.0)
    gateway = FeedGateway(dataset, tmp_path / "old", FeedLimits(), lambda: now_s)
    assert isinstance(gateway.accept(alert(info()), RecordForm.CAP), Accepted)
    gateway.sync()
    now_s += 61
    gateway.maintain()
    update = gateway.accept(
        alert(info(), identifier="A2", sent=at(5), msg_type="Update", references=reference("A1")), RecordForm.CAP
    )
    gateway.close()
    assert isinstance(update, Accepted) and "has not seen" in update.notices[0]
