"""A body that is decoded at once gives exactly the records and digests that decoding record by record gives."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tocsin.cluster.feed.recordforms import RecordForm
from tocsin.cluster.feed.records import Decoded, RecordCodec
from tocsin.model.schema import Column, Schema

SCALARS = ["STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP"]
TYPES = [*SCALARS, "DECIMAL(5,2)", "DECIMAL(38,0)", "ARRAY<INT>", "ARRAY<TIMESTAMP>", "ARRAY<ARRAY<DECIMAL(5,2)>>"]
NAMES = ["id", "class", "é", "with blank"]
ODD_LITERALS = [
    "null", "true", "1", "-0.0", "1.0", "1e2", "1E400", "1e-400", "NaN", "Infinity", "-Infinity", "01", "+1", "1.", "",
    "127", "128", "-32769", "2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "1" * 400, "0.1", "3.4028235e38", "3.5e38", "12.345", "999.99", "1000", '"12.50"', '"1e2"', '"NaN"',
    '"2026-11-15T18:00:00Z"', '"2026-11-15t18:00:00.1234567+02:00"', '"2026-11-15T18:00:00"', '"2026-11-15"',
    '"0001-01-01T00:00:00+14:00"', '"2026-02-30"', '""', '"\\u0041"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\ude00x"',
    '"\\u0022:"', '"\\":"', '":"', '"\u2028"', '"\x01"', '"tab\\t"', "[]", "[1,null]", '[["1.5"],null]', '["x"]', "{}",
    '{"a":1,"a":2}',
]  # fmt: skip
LITERALS = st.sampled_from(ODD_LITERALS) | st.one_of(st.integers(), st.floats(), st.text(max_size=8)).map(json.dumps)
FITTING: dict[str, Any] = {
    "STRING": st.text(max_size=6).map(json.dumps),
    "BOOLEAN": st.sampled_from(["true", "false"]),
    "FLOAT": st.floats(width=32, allow_nan=False, allow_infinity=False).map(json.dumps),
    "DOUBLE": st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    "DATE": st.dates().map(lambda day: f'"{day.isoformat()}"'),
    "TIMESTAMP": st.datetimes().map(lambda time: f'"{time.isoformat()}Z"'),
}


def literals(column: Column) -> st.SearchStrategy[str]:
    fitting = FITTING.get(column.type, st.integers(-99, 99).map(str))
    return st.one_of(fitting, fitting, fitting, LITERALS)


@st.composite
def requests(draw: st.DrawFn) -> tuple[RecordCodec, bytes, RecordForm]:
    """A codec for some schema, and a body that may be good, wrong or no JSON at all."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    columns = tuple(Column(name, draw(st.sampled_from(TYPES))) for name in names)
    key = [column.name for column in columns if not column.type.startswith("ARRAY") and draw(st.booleans())]
    colon, comma = draw(st.sampled_from([(":", ","), (": ", ", "), (" :", "\t,")]))
    records = []
    for _ in range(draw(st.integers(0, 5))):
        order = draw(st.permutations(columns)) if draw(st.booleans()) else columns
        members = [json.dumps(column.name) + colon + draw(literals(column)) for column in order]
        if draw(st.integers(0, 9)) == 0:  # a field twice, a missing field or an unknown one
            members += [draw(st.sampled_from([members[0], '"unknown":1', '"\\u0069d":"1"']))]
            members = members[draw(st.integers(0, 1)) :]
        records.append("{" + comma.join(members) + "}")
    form = draw(st.sampled_from([RecordForm.JSON, RecordForm.LINES]))
    text = "\n".join(records) if form is RecordForm.LINES else f"[{comma.join(records)}]"
    body = text.encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(body)))
        body = body[:cut] + draw(st.binary(max_size=3)) + body[cut:]
    return RecordCodec(Schema(columns), key, digest_seed=draw(st.integers(0, 1 << 63))), body, form


REPORTS = RecordCodec(Schema.of(id="STRING", n="BIGINT", at="TIMESTAMP"), key=("id",))


@settings(max_examples=600, deadline=None)
@given(requests())
@example((REPORTS, b'[{"id":"a","n":1,"n":2}]', RecordForm.JSON))
@example((REPORTS, b'[{"id":"a","n":9223372036854775808}]', RecordForm.JSON))
@example((REPORTS, b'[{"id":"a","n":1.0}]', RecordForm.JSON))
@example((REPORTS, b'[{"id":"\\ud800"}]', RecordForm.JSON))
@example((REPORTS, b'[{"id":"\\u0022:","\\u0069d":"b"}]', RecordForm.JSON))
def test_body_decoded_at_once_equals_the_body_decoded_record_by_record(
    request_: tuple[RecordCodec, bytes, RecordForm],
) -> None:
    codec, body, form = request_
    at_once, closely = codec.decode_good(body, form), codec.decode_closely(body, form)
    if at_once is not None:
        assert at_once == closely
        assert at_once.refusals == []
    assert codec.decode(body, form) == closely
    if isinstance(closely, Decoded):
        assert codec.digests(closely.lines) == closely.digests


@given(st.lists(st.tuples(st.text(), st.integers(-(1 << 63), (1 << 63) - 1), st.datetimes()), min_size=1, max_size=8))
def test_good_body_in_canonical_spelling_is_decoded_at_once(rows: list[tuple[str, int, Any]]) -> None:
    body = json.dumps([{"id": name, "n": number, "at": f"{time.isoformat()}Z"} for name, number, time in rows])
    decoded = REPORTS.decode_good(body.encode(), RecordForm.JSON)
    escaped = "\\u0022" in body or "\\u003a" in body
    assert escaped or (decoded is not None and decoded.count == len(rows))
