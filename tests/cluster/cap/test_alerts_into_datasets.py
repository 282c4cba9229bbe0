"""What alerts leave in a dataset: through the real feed gateway, read back from its log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cap.alerts import SQUARE, alert, area, at, info, reference
from tocsin.cluster.feed.gateway import Accepted, FeedGateway, FeedLimits, KeyConflict, Malformed, RecordForm, TooLarge
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema

EXAMPLES = Path(__file__).parents[3] / "examples" / "emergency"
CITY = Schema.of(
    report_id="STRING", kind="STRING", severity="INT", lat="DOUBLE", lon="DOUBLE", message="STRING",
    reported_at="TIMESTAMP",
)  # fmt: skip
FULL = Schema.of(
    identifier="STRING", sender="STRING", sent="TIMESTAMP", status="STRING", msgType="STRING", scope="STRING",
    event="STRING", category="ARRAY<STRING>", urgency="STRING", severity="STRING", certainty="INT", headline="STRING",
    description="STRING", instruction="STRING", area_desc="STRING", effective="TIMESTAMP", onset="TIMESTAMP",
    expires="TIMESTAMP", lat="DOUBLE", lon="DOUBLE", radius_m="DOUBLE", polygon="STRING", references="STRING",
    mine="INT",
)  # fmt: skip


class Desk:
    """A dataset behind its gateway."""

    def __init__(self, directory: Path, schema: Schema, kind: DatasetKind, *key: str, **limits: Any) -> None:
        self._dataset = Dataset(DatasetName("D"), kind, schema, key)
        self._directory, self._limits = directory, FeedLimits(**limits)
        self.gateway = self._opened()

    def _opened(self) -> FeedGateway:
        return FeedGateway(self._dataset, self._directory, self._limits, lambda: 1_800_000_000.0)

    def send(self, body: bytes, key: str | None = None) -> Accepted:
        outcome = self.gateway.accept(body, RecordForm.CAP, key)
        assert isinstance(outcome, Accepted), outcome
        self.gateway.sync()
        return outcome

    def refuse(self, body: bytes) -> str:
        outcome = self.gateway.accept(body, RecordForm.CAP)
        assert isinstance(outcome, Malformed | KeyConflict | TooLarge), outcome
        return outcome.reason

    def restart(self) -> None:
        self.gateway.close()
        self.gateway = self._opened()

    def log(self) -> list[dict[str, Any]]:
        frames, _ = self.gateway._log.read(0, 1 << 20)
        return [json.loads(line) for frame in frames for line in frame.payload.split(b"\n") if line]

    def state(self, *key: str) -> dict[Any, dict[str, Any]]:
        """The latest record per key, as a KEYED dataset shows it."""
        return {tuple(row[name] for name in key) if len(key) > 1 else row[key[0]]: row for row in self.log()}


Opened = Callable[..., Desk]


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    opened: list[Desk] = []

    def open_desk(schema: Schema, kind: DatasetKind, *key: str, **limits: Any) -> Desk:
        opened.append(Desk(tmp_path / f"{len(opened)}", schema, kind, *key, **limits))
        return opened[-1]

    yield open_desk
    for one in opened:
        one.gateway.close()


def stream(desk: Opened) -> Desk:
    return desk(CITY, DatasetKind.STREAM, "report_id")


def keyed(desk: Opened) -> Desk:
    return desk(FULL, DatasetKind.KEYED, "identifier")


def test_an_alert_becomes_a_report_of_the_emergency_city(desk: Opened) -> None:
    city = stream(desk)
    assert city.send((EXAMPLES / "alert.xml").read_bytes()).accepted == 1
    assert city.log() == [
        {
            "report_id": "HEL-2026-0117", "kind": "fire", "severity": 4, "lat": 60.1678, "lon": 24.9561,
            "message": "Warehouse fire at the harbour\nThick smoke drifts over the harbour and the streets behind it.",
            "reported_at": "2026-11-15T16:00:00Z",
        }
    ]  # fmt: skip


def test_every_column_named_after_an_element_is_filled_in_its_type(desk: Opened) -> None:
    full = desk(FULL, DatasetKind.STREAM)
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
def test_severities_are_ranked_when_the_column_is_a_number(desk: Opened, word: str, number: int) -> None:
    city = stream(desk)
    city.send(alert(info(severity=word)))
    assert city.log()[0]["severity"] == number


def test_there_is_one_record_for_each_area_of_each_info(desk: Opened) -> None:
    city = stream(desk)
    city.send(alert(info(area(desc="a"), area(desc="b")), info(event="smoke")))
    assert [(row["report_id"], row["kind"], row["lat"]) for row in city.log()] == [
        ("A1/1/1", "fire", 60.17), ("A1/1/2", "fire", 60.17), ("A1/2/1", "smoke", None),
    ]  # fmt: skip


def test_people_are_told_in_the_first_language_unless_a_column_tells_them_apart(desk: Opened) -> None:
    body = alert(info(event="fire", language="en-GB"), info(event="palo", language="fi"))
    city = stream(desk)
    city.send(body)
    assert [(row["report_id"], row["kind"]) for row in city.log()] == [("A1", "fire")]
    both = desk(Schema.of(alert_id="STRING", event="STRING", language="STRING"), DatasetKind.STREAM, "alert_id")
    both.send(body)
    assert [(row["alert_id"], row["language"]) for row in both.log()] == [("A1/1/1", "en-GB"), ("A1/2/1", "fi")]


def test_a_long_description_is_cut_in_the_message_and_whole_in_its_own_column(desk: Opened) -> None:
    body = alert(info(more=f"<description>{'long ' * 2_000}</description>"))
    city, full = stream(desk), desk(FULL, DatasetKind.STREAM)
    city.send(body)
    full.send(body)
    assert len(city.log()[0]["message"]) <= 2_000 and city.log()[0]["message"].endswith("…")
    assert len(full.log()[0]["description"]) == 9_999


def test_the_same_alert_again_enters_once_in_every_kind_of_dataset(desk: Opened) -> None:
    body = alert(info(area()))
    other_spelling = body.replace(b"\n", b"\n   ").replace(b"</alert>", b"<!-- again --></alert>")
    city = stream(desk)
    assert (city.send(body).accepted, city.send(body, "key").duplicates, city.send(other_spelling).duplicates) == (
        1,
        1,
        1,
    )
    for one in (keyed(desk), desk(FULL, DatasetKind.STREAM)):
        first, again = one.send(body, "one key"), one.send(other_spelling, "another key")
        assert (first.accepted, first.replayed, again.accepted, again.replayed) == (1, False, 1, True)
        one.restart()
        assert one.send(body).replayed and len(one.log()) == 1


def test_an_identifier_that_stands_for_something_else_is_a_conflict_not_a_repeat(desk: Opened) -> None:
    for one in (stream(desk), keyed(desk)):
        one.send(alert(info()))
        assert "said something else" in one.refuse(alert(info(event="flood")))
        assert "at 2026-11-15T16:00:00-00:00" in one.refuse(alert(info(), sent=at(5)))
        assert "an alert of desk@rescue.example" in one.refuse(alert(info(), sender="other@x.example"))
        assert len(one.log()) == 1
    apart = desk(FULL, DatasetKind.KEYED, "sender", "identifier")
    apart.send(alert(info()))
    apart.send(alert(info(), sender="other@x.example"))
    assert len(apart.state("sender", "identifier")) == 2


def test_a_stream_keeps_every_message_and_says_what_it_is(desk: Opened) -> None:
    city, full = stream(desk), desk(FULL, DatasetKind.STREAM)
    for one in (city, full):
        one.send(alert(info(area(), more="<headline>Fire</headline>")))
        one.send(
            alert(info(area(), more="<headline>Worse</headline>", severity="Extreme"), identifier="A2", sent=at(5),
                  msg_type="Update", references=reference("A1"))
        )  # fmt: skip
        one.send(
            alert(identifier="A3", sent=at(9), msg_type="Cancel", references=f"{reference('A1')} {reference('A2', 5)}")
        )
    assert [(row["report_id"], row["message"], row["severity"], row["lat"]) for row in city.log()] == [
        ("A1", "Fire", 4, 60.17), ("A2", "Update: Worse", 5, 60.17), ("A3", "Cancelled: Worse", 5, 60.17),
    ]  # fmt: skip
    assert [(row["identifier"], row["msgType"], row["references"]) for row in full.log()] == [
        ("A1", "Alert", None), ("A2", "Update", reference("A1")),
        ("A3", "Cancel", f"{reference('A1')} {reference('A2', 5)}"),
    ]  # fmt: skip
    assert full.log()[2]["expires"] == "2026-11-15T16:09:00Z" == full.log()[2]["sent"]


def test_the_example_cancel_ends_the_example_alert(desk: Opened) -> None:
    city = stream(desk)
    city.send((EXAMPLES / "alert.xml").read_bytes())
    assert city.send((EXAMPLES / "alert-cancel.xml").read_bytes()).notices == []
    before, cancel = city.log()
    assert cancel["message"] == f"Cancelled: {before['message']}" and cancel["kind"] == "fire"
    assert (cancel["report_id"], cancel["lat"]) == ("HEL-2026-0118", before["lat"])


def test_a_keyed_dataset_shows_the_latest_of_a_chain_under_the_first_identifier(desk: Opened) -> None:
    one = keyed(desk)
    one.send(alert(info(area())))
    one.send(
        alert(
            info(area(), severity="Minor"), identifier="A2", sent=at(5), msg_type="Update", references=reference("A1")
        )
    )
    one.restart()
    # Refers to the second alone, as many senders do.
    one.send(
        alert(
            info(area(), severity="Extreme"),
            identifier="A3",
            sent=at(9),
            msg_type="Update",
            references=reference("A2", 5),
        )
    )
    assert {key: (row["severity"], row["msgType"]) for key, row in one.state("identifier").items()} == {
        "A1": ("Extreme", "Update")
    }
    one.send(alert(identifier="A4", sent=at(12), msg_type="Cancel", references=reference("A3", 9)))
    [(key, row)] = one.state("identifier").items()
    assert (key, row["msgType"], row["severity"], row["expires"]) == ("A1", "Cancel", "Extreme", "2026-11-15T16:12:00Z")


def test_areas_that_an_update_no_longer_mentions_end(desk: Opened) -> None:
    one = keyed(desk)
    one.send(alert(info(area(desc="a"), area(desc="b"))))
    one.send(alert(info(area(desc="a")), identifier="A2", sent=at(5), msg_type="Update", references=reference("A1")))
    state = {key: (row["area_desc"], row["msgType"]) for key, row in one.state("identifier").items()}
    assert state == {"A1/1/1": ("a", "Cancel"), "A1/1/2": ("b", "Cancel"), "A1": ("a", "Update")}
    stored = len(one.log())
    one.send(alert(info(area(desc="c")), identifier="A3", sent=at(7), msg_type="Update",
                   references=f"{reference('A1')} {reference('A2', 5)}"))  # fmt: skip
    assert len(one.log()) == stored + 1, "what had ended is not ended again"


def test_an_alert_that_comes_after_its_update_does_not_replace_it(desk: Opened) -> None:
    one = keyed(desk)
    update = alert(info(severity="Minor"), identifier="A2", sent=at(5), msg_type="Update", references=reference("A1"))
    [notice] = one.send(update).notices
    assert notice == f"refers to {reference('A1')}, which D has not seen; taken all the same"
    late = one.send(alert(info()))
    assert late.accepted == 0 and "a later message about this alert came before" in late.notices[0]
    assert one.state("identifier")["A1"]["severity"] == "Minor"


def test_an_update_of_two_alerts_takes_the_place_of_the_older_and_ends_the_other(desk: Opened) -> None:
    one = keyed(desk)
    one.send(alert(info(), identifier="A1"))
    one.send(alert(info(), identifier="B1", sent=at(1)))
    both = f"{reference('B1', 1)} {reference('A1')}"
    one.send(alert(info(event="both"), identifier="C1", sent=at(5), msg_type="Update", references=both))
    state = {key: (row["event"], row["msgType"]) for key, row in one.state("identifier").items()}
    assert state == {"A1": ("both", "Update"), "B1": ("fire", "Cancel")}


def test_a_retry_after_the_disk_refused_does_the_same_again(desk: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    one = keyed(desk)
    one.send(alert(info(area(desc="a"), area(desc="b"))))
    update = alert(info(area()), identifier="A2", sent=at(5), msg_type="Update", references=reference("A1"))
    with monkeypatch.context() as broken:
        broken.setattr(one.gateway._log, "sync", lambda upto: (_ for _ in ()).throw(OSError("full")))
        assert isinstance(one.gateway.accept(update, RecordForm.CAP), Accepted)
        with pytest.raises(OSError, match="full"):
            one.gateway.sync()
    assert one.send(update).accepted == 3 and one.send(update).replayed
    assert {key: row["msgType"] for key, row in one.state("identifier").items()} == {
        "A1": "Update", "A1/1/1": "Cancel", "A1/1/2": "Cancel",
    }  # fmt: skip


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
def test_what_would_mislead_subscribers_is_refused(desk: Opened, body: bytes, reason: str) -> None:
    city = stream(desk)
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
def test_a_dataset_that_cannot_take_alerts_says_what_it_lacks(
    desk: Opened, schema: Schema, key: str | None, reason: str
) -> None:
    one = desk(schema, DatasetKind.STREAM, *([key] if key else []))
    assert reason in one.refuse(alert(info()))


def test_a_cancel_needs_a_column_that_shows_it(desk: Opened) -> None:
    bare = desk(Schema.of(identifier="STRING", event="STRING"), DatasetKind.STREAM, "identifier")
    assert "would look like an alert" in bare.refuse(alert(info(), msg_type="Cancel", references=reference("A0")))


def test_an_area_without_shape_is_taken_and_said(desk: Opened) -> None:
    answer = stream(desk).send(
        alert(info(area("<geocode><valueName>S</valueName><value>1</value></geocode>", "County")))
    )
    assert answer.accepted == 1 and "'County' has neither polygon nor circle" in answer.notices[0]


def test_an_alert_that_is_too_large_leaves_nothing_behind(desk: Opened) -> None:
    full = desk(FULL, DatasetKind.STREAM, "identifier", record_bytes=2_000)
    assert "record bytes" in full.refuse(alert(info(more=f"<description>{'x' * 5_000}</description>")))
    assert full.send(alert(info())).accepted == 1, "its identifier is still free"


def test_what_has_passed_the_retention_is_forgotten(desk: Opened, tmp_path: Path) -> None:
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
