"""The forms results are given in: which one `Accept` asks for, and the bytes of an open pull in it.

A listing comes as Arrow, JSON lines, GeoJSON or an Atom feed of CAP alerts; one result as JSON, GeoJSON or a CAP alert.
Reading happens in whatever thread iterates over the bytes. No authority here: the routes have checked who asks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from tocsin.cluster.cap.alert import Alert
from tocsin.cluster.cap.geojson import Gap, collection, feature
from tocsin.cluster.cap.results import Origin, alert_of
from tocsin.cluster.cap.writing import Feed, alert_document, atom_feed
from tocsin.cluster.pulling import Pull, Pulled, arrow_stream, json_lines, pulled
from tocsin.cluster.server.routes.api import Api
from tocsin.model.cursor import Cursor, execution_of
from tocsin.runtime.http.answers import ARROW, ATOM, CAP, GEOJSON, JSON, NDJSON, encode
from tocsin.wire.errors import Code, TocsinError

LISTED = {
    ARROW: ARROW, GEOJSON: GEOJSON, ATOM: ATOM, NDJSON: NDJSON,
    "": NDJSON, "*/*": NDJSON, "application/*": NDJSON, "application/json": NDJSON, "application/jsonl": NDJSON,
}  # fmt: skip
SINGLE = {CAP: CAP, GEOJSON: GEOJSON, JSON: JSON, "": JSON, "*/*": JSON, "application/*": JSON}


def accepted_form(accept: str, forms: Mapping[str, str]) -> str:
    """The first form asked for that there is."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    for kind in kinds:
        if kind in forms:
            return forms[kind]
    hint = "; a listing in CAP is an Atom feed, one result is an alert" if CAP in kinds else ""
    raise TocsinError(Code.BAD_REQUEST, f"Accept: this comes as {', '.join(sorted(set(forms.values())))}{hint}")


def listing(api: Api, pull: Pull, form: str) -> Iterator[bytes]:
    store = api.cluster.results
    if form == ARROW:
        return arrow_stream(store, pull)
    if form == GEOJSON:
        return _collection(api, pull)
    return _feed(api, pull) if form == ATOM else json_lines(store, pull)


def single(api: Api, pull: Pull, found: Pulled, form: str) -> bytes:
    if form == CAP:
        return alert_document(_Issuer(api, pull).alert(found))
    if form == GEOJSON:
        return encode(feature(found.subscription, found.cursor, found.result))
    return encode(found._asdict())


def _collection(api: Api, pull: Pull) -> Iterator[bytes]:
    gaps = [Gap(subscription, str(cursor)) for subscription, cursor in pull.gaps.items()]
    features = (
        [feature(one.subscription, one.cursor, one.result) for one in some]
        for some in pulled(api.cluster.results, pull)
    )
    return collection(gaps, features)


def _feed(api: Api, pull: Pull) -> Iterator[bytes]:
    issuer = _Issuer(api, pull)
    entries = (
        (f"/v1/results/{one.subscription}/{one.cursor}", issuer.alert(one))
        for some in pulled(api.cluster.results, pull)
        for one in some
    )
    missing = f"Gap: results of {', '.join(pull.gaps)} before this have passed their retention." if pull.gaps else None
    about = Feed(
        f"urn:tocsin:channel:{pull.channel}", pull.channel, issuer.sender, issuer.latest(api.cluster.now_s()), missing
    )
    return (piece.encode() for piece in atom_feed(about, entries))


class _Issuer:
    """Makes alerts of the results of one pull; knows when each of its executions finished."""

    def __init__(self, api: Api, pull: Pull) -> None:
        self._channel = pull.channel
        self.sender = api.settings.cap_sender
        first = execution_of(min(pull.after.values(), default=0))
        times = api.cluster.catalog.executions.times(pull.channel, pull.upto.epoch, first)
        self._executions = [execution for execution, _ in times]
        self._finished_s = [finished_s for _, finished_s in times]

    def alert(self, one: Pulled) -> Alert:
        return alert_of(
            one.result, Origin(f"{one.subscription}-{one.cursor}", self.sender, self._sent(one.cursor), self._channel)
        )

    def latest(self, now_s: float) -> datetime:
        return _moment(self._finished_s[-1] if self._finished_s else now_s)

    def _sent(self, cursor: str) -> datetime:
        """When its execution finished. Beyond 2**20 results an execution runs into the numbers that follow its own."""
        position = Cursor.parse(cursor)
        assert position is not None
        at = bisect_right(self._executions, execution_of(position.offset - 1)) - 1
        return _moment(self._finished_s[max(at, 0)] if self._finished_s else 0.0)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
