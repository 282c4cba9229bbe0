"""The codec accepts values that fit the schema, reports errors, and writes one canonical text per value."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tocsin.cluster.feed.recordforms import Malformed, RecordForm, RecordRefusal, TooMany
from tocsin.cluster.feed.records import HOPELESS, Decoded, RecordCodec
from tocsin.model.schema import Column, Schema

REPORTS = Schema.of(
    report_id="STRING",
    kind="STRING",
    severity="INT",
    lat="DOUBLE",
    lon="DOUBLE",
    message="STRING",
    reported_at="TIMESTAMP",
)
CODEC = RecordCodec(REPORTS, key=("report_id",))
EVENT = {"id": "1", "source": "/meter", "type": "report", "specversion": "1.0"}


def decode(codec: RecordCodec, body: Any, form: RecordForm = RecordForm.JSON) -> Decoded:
    decoded = codec.decode(body if isinstance(body, bytes) else json.dumps(body).encode(), form)
    assert isinstance(decoded, Decoded), decoded
    return decoded


def stored(codec: RecordCodec, body: Any, form: RecordForm = RecordForm.JSON) -> list[Any]:
    decoded = decode(codec, body, form)
    assert decoded.refusals == []
    return [json.loads(line) for line in decoded.lines.split(b"\n")]


def value_of(column_type: str, literal: str) -> str | RecordRefusal:
    """The canonical text of a JSON literal in a column of that type, or the refusal."""
    decoded = decode(RecordCodec(Schema.of(v=column_type)), f'[{{"v":{literal}}}]'.encode())
    if decoded.refusals:
        return decoded.refusals[0]
    return decoded.lines.decode()[len('{"v":') : -1]


def test_line_has_schema_order_and_leaves_out_missing_columns() -> None:
    body = b'[{"severity": 3, "report_id": "a", "message": null}]'
    assert decode(CODEC, body).lines == b'{"report_id":"a","severity":3,"message":null}'


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b'[{"report_id":"a"},{"report_id":"b"}]', RecordForm.JSON),
        (b' [ {"report_id" : "a"} , {"report_id":"b"} ] ', RecordForm.JSON),
        (b'{"report_id":"a"}\n{"report_id":"b"}\n', RecordForm.LINES),
        (b'{"report_id":"a"}\r\n\r\n{"report_id":"b"}', RecordForm.LINES),
        (b'{"report_id":"a"}\n{"report_id":"b"}', RecordForm.JSON),
        (json.dumps([{**EVENT, "data": {"report_id": k}} for k in "ab"]).encode(), RecordForm.CLOUDEVENTS_BATCH),
    ],
)
def test_every_form_gives_the_same_records(body: bytes, form: RecordForm) -> None:
    decoded = decode(CODEC, body, form)
    assert decoded.lines == b'{"report_id":"a"}\n{"report_id":"b"}'
    assert decoded.count == 2
    assert decoded.digests == [CODEC.digests(line)[0] for line in decoded.lines.split(b"\n")]


def test_single_object_may_span_lines() -> None:
    assert stored(CODEC, b'{\n "report_id": "a",\n "severity": 2\n}') == [{"report_id": "a", "severity": 2}]


def test_single_cloudevent_has_its_record_in_data() -> None:
    event = {**EVENT, "data": {"report_id": "a"}, "subject": "ignored"}
    assert stored(CODEC, event, RecordForm.CLOUDEVENT) == [{"report_id": "a"}]


@pytest.mark.parametrize(
    ("change", "field"),
    [({"source": None}, "source"), ({"id": ""}, "id"), ({"specversion": "0.3"}, "specversion"), ({"data": 1}, None)],
)
def test_only_the_cloudevent_without_required_attributes_is_refused(change: dict[str, Any], field: str | None) -> None:
    events = [{**EVENT, "data": {"report_id": "a"}}, {**EVENT, "data": {"report_id": "b"}, **change}]
    decoded = decode(CODEC, events, RecordForm.CLOUDEVENTS_BATCH)
    assert decoded.lines == b'{"report_id":"a"}'
    assert [(refusal.index, refusal.field) for refusal in decoded.refusals] == [(1, field)]


def test_refusal_of_cloudevent_without_data_names_the_data_attribute() -> None:
    decoded = decode(CODEC, {**EVENT, "data_base64": "e30="}, RecordForm.CLOUDEVENT)
    assert decoded.refusals == [RecordRefusal(0, "data", "the record goes into `data` as JSON, not data_base64")]


def test_bad_records_are_refused_with_index_field_and_reason() -> None:
    body = [
        {"report_id": "a"},
        {"report_id": "b", "severity": "high"},
        {"severity": 1},
        {"report_id": "d", "mesage": "typo"},
        {"report_id": None},
        7,
        {"report_id": "g", "reported_at": 1763229600},
    ]
    decoded = decode(CODEC, body)
    assert decoded.lines == b'{"report_id":"a"}'
    assert decoded.count == len(decoded.digests) == 1
    assert decoded.refusals == [
        RecordRefusal(1, "severity", "Expected `int | null`, got `str`; the column is INT"),
        RecordRefusal(2, "report_id", "missing, and part of the KEY"),
        RecordRefusal(3, "mesage", "unknown field; did you mean message?"),
        RecordRefusal(4, "report_id", "missing, and part of the KEY"),
        RecordRefusal(5, None, "Expected `object`, got `int`"),
        RecordRefusal(
            6,
            "reported_at",
            "Expected `datetime | null`, got `int`; "
            "the column is TIMESTAMP (RFC 3339 text such as 2026-11-15T18:00:00Z)",
        ),
    ]


@pytest.mark.parametrize(
    ("column_type", "literal", "canonical"),
    [
        ("TIMESTAMP", '"2026-11-15T18:00:00.000000Z"', '"2026-11-15T18:00:00Z"'),
        ("TIMESTAMP", '"2026-11-15T18:00:00"', '"2026-11-15T18:00:00Z"'),
        ("TIMESTAMP", '"2026-11-15T18:00:00.5Z"', '"2026-11-15T18:00:00.500000Z"'),
        ("TIMESTAMP", '"2026-11-15T20:00:00.25+02:00"', '"2026-11-15T18:00:00.250000Z"'),
        ("TIMESTAMP", '"0007-01-02T03:04:05.000006Z"', '"0007-01-02T03:04:05.000006Z"'),
        ("DATE", '"2026-02-03"', '"2026-02-03"'),
        ("FLOAT", "0.1", "0.10000000149011612"),
        ("FLOAT", "16777217", "16777216.0"),
        ("FLOAT", "3.4028235e38", "3.4028234663852886e38"),
        ("ARRAY<FLOAT>", "[-3.4028235e38]", "[-3.4028234663852886e38]"),
        ("DOUBLE", "5", "5.0"),
        ("DOUBLE", "-0.0", "-0.0"),
        ("DECIMAL(5,2)", "1.5", "1.50"),
        ("DECIMAL(5,2)", '"-999.99"', "-999.99"),
        ("DECIMAL(5,2)", "1.5000", "1.50"),
        ("DECIMAL(5,0)", "12e2", "1200"),
        ("DECIMAL(38,0)", "9" * 38, "9" * 38),
        ("DECIMAL(3,3)", "0.125", "0.125"),
        ("BIGINT", "9223372036854775807", "9223372036854775807"),
        ("TINYINT", "-128", "-128"),
        ("BOOLEAN", "true", "true"),
        ("STRING", '"a\\nb\\u00e9\\u2028"', '"a\\nbé\u2028"'),
        ("ARRAY<TIMESTAMP>", '["2026-11-15T18:00:00.000Z",null]', '["2026-11-15T18:00:00Z",null]'),
        ("ARRAY<ARRAY<DECIMAL(3,1)>>", "[[1],[]]", "[[1.0],[]]"),
    ],
)
def test_value_has_one_canonical_text(column_type: str, literal: str, canonical: str) -> None:
    assert value_of(column_type, literal) == canonical
    assert value_of(column_type, canonical) == canonical


@pytest.mark.parametrize(
    ("column_type", "literal"),
    [
        ("INT", "1.0"), ("INT", "1e3"), ("INT", "2147483648"), ("INT", '"1"'), ("INT", "true"), ("TINYINT", "128"),
        ("SMALLINT", "-32769"), ("BIGINT", "9223372036854775808"), ("BIGINT", "1" * 5000), ("DOUBLE", "1e999"),
        ("DOUBLE", "NaN"), ("DOUBLE", "-Infinity"), ("DOUBLE", '"1"'), ("FLOAT", "1e39"),
        ("FLOAT", "3.4028236e38"), ("FLOAT", "-3.4028235677973366e38"), ("DECIMAL(5,2)", "1.234"),
        ("DECIMAL(5,2)", "1000"), ("DECIMAL(5,2)", '"NaN"'), ("DECIMAL(5,2)", "1e999999999"),
        ("DECIMAL(5,2)", '"Infinity"'), ("DECIMAL(5,2)", "1e-999999999"), ("DATE", '"2026-02-30"'), ("DATE", "5"),
        ("TIMESTAMP", "1763229600"), ("TIMESTAMP", '"yesterday"'), ("TIMESTAMP", '"0001-01-01T00:00:00+10:00"'),
        ("STRING", "5"), ("STRING", '"\\ud800"'), ("STRING", "[" * 5000 + "]" * 5000), ("BOOLEAN", "0"),
        ("ARRAY<INT>", "[1.5]"), ("ARRAY<DECIMAL(2,1)>", "[100]"),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_refuses_only_its_record(column_type: str, literal: str) -> None:
    codec = RecordCodec(Schema.of(v=column_type))
    for separator, form in ((",", RecordForm.JSON), ("\n", RecordForm.LINES)):
        text = separator.join(['{"v":null}', f'{{"v":{literal}}}', '{"v":null}'])
        decoded = codec.decode((f"[{text}]" if form is RecordForm.JSON else text).encode(), form)
        if isinstance(decoded, Malformed):  # no parser can isolate an element with such deep nesting
            assert "nested" in decoded.reason
            continue
        assert isinstance(decoded, Decoded)
        assert [refusal.index for refusal in decoded.refusals] == [1]
        assert decoded.refusals[0].reason
        assert decoded.count == 2


def test_invalid_utf8_refuses_only_its_record() -> None:
    decoded = decode(CODEC, b'[{"report_id":"a"},{"report_id":"\xff"}]')
    assert decoded.lines == b'{"report_id":"a"}'
    assert decoded.refusals == [RecordRefusal(1, None, "not valid UTF-8")]


@pytest.mark.parametrize(
    "twice",
    [
        b'{"report_id":"x","report_id":"y"}',
        b'{"report_id" :"x","report_id":"y"}',
        b'{"report_id":"x","severity":1,"severity" : 2}',
        b'{"report_id":"\\u0022:","kind":"a","kind":"b"}',
        b'{"report_id":"\\"\\u003a","kind":"a","kind":"b"}',
        b'{"report_id":"\\":","kind":"\\":\\":","kind":"b"}',
        b'{"report_id":"x","\\u0072eport_id":"y"}',
    ],
)
def test_repeated_field_is_refused_in_any_spelling(twice: bytes) -> None:
    decoded = decode(CODEC, b'[{"report_id":"good"},' + twice + b',{"report_id" : "blank"}]')
    assert decoded.lines == b'{"report_id":"good"}\n{"report_id":"blank"}'
    assert [(refusal.index, refusal.reason) for refusal in decoded.refusals] == [(1, "the field occurs twice")]


@pytest.mark.parametrize("after", [b"", b',{"report_id":"b"}'])
@pytest.mark.parametrize("same", [b'"kind":"a","kind":"a"', b'"kind":"a","kind":"b"', b'"severity":1,"severity":1'])
def test_repeated_field_is_refused_in_an_otherwise_canonical_body(same: bytes, after: bytes) -> None:
    decoded = decode(CODEC, b'[{"report_id":"a"},{"report_id":"x",' + same + b"}" + after + b"]")
    assert [(refusal.index, refusal.reason) for refusal in decoded.refusals] == [(1, "the field occurs twice")]


@pytest.mark.parametrize(
    "body", [b"", b"  ", b"[", b"[1,", b'[{"report_id":"a"}] x', b'[{"report_id":"a"} {"report_id":"b"}]', b"[]]"]
)
def test_body_that_is_not_json_is_malformed(body: bytes) -> None:
    assert isinstance(CODEC.decode(body, RecordForm.JSON), Malformed)


def test_too_many_records_are_refused_whether_good_or_bad() -> None:
    codec = RecordCodec(REPORTS, max_records=3)
    for element in ("{}", "1", '{"report_id":"{{{{"}'):
        assert codec.decode(f"[{','.join([element] * 4)}]".encode(), RecordForm.JSON) == TooMany(3)
        assert codec.decode("\n".join([element] * 4).encode(), RecordForm.LINES) == TooMany(3)
    assert decode(codec, [{"report_id": "{{{{"}] * 3).count == 3


def test_column_may_have_the_name_of_a_python_keyword() -> None:
    codec = RecordCodec(Schema.of(**{"class": "STRING", "from": "INT"}), key=("class",))
    assert stored(codec, [{"class": "a", "from": 1}]) == [{"class": "a", "from": 1}]


def test_equal_keys_in_different_spellings_have_the_same_digest() -> None:
    codec = RecordCodec(Schema.of(a="STRING", b="TIMESTAMP", c="DOUBLE", d="DECIMAL(5,2)"), key=("a", "b", "c", "d"))
    first = {"a": "x", "b": "2026-11-15T18:00:00Z", "c": 0, "d": 1}
    second = {"a": "x", "b": "2026-11-15T20:00:00+02:00", "c": -0.0, "d": "1.00"}
    other = {"a": "x", "b": "2026-11-15T18:00:00.000001Z", "c": 0, "d": 1}
    digests = decode(codec, [first, second, other]).digests
    assert digests[0] == digests[1] != digests[2]
    assert {len(digest) for digest in digests} == {16}


def test_composite_keys_with_the_same_characters_have_different_digests() -> None:
    codec = RecordCodec(Schema.of(a="STRING", b="STRING"), key=("a", "b"))
    body = [{"a": "x", "b": "yz"}, {"a": "xy", "b": "z"}, {"a": 'x","y', "b": "z"}, {"a": "", "b": "xyz"}]
    assert len(set(decode(codec, body).digests)) == 4


def test_digests_of_stored_lines_equal_the_first_digests() -> None:
    for key in (("report_id",), ("reported_at", "severity")):
        codec = RecordCodec(REPORTS, key=key)
        records = [{"report_id": str(n), "severity": n, "reported_at": f"2026-11-15T18:00:0{n}Z"} for n in range(5)]
        decoded = decode(codec, records)
        assert codec.digests(decoded.lines) == decoded.digests


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*REPORTS.names, "x"]), inner),
    max_leaves=12,
)


@settings(max_examples=300)
@given(
    body=st.binary(max_size=200)
    | st.lists(JSON_VALUES, max_size=6).map(lambda value: json.dumps(value).encode())
    | st.lists(JSON_VALUES, max_size=6).map(lambda values: "\n".join(map(json.dumps, values)).encode())
    | st.tuples(st.binary(max_size=30), st.binary(max_size=30)).map(lambda parts: b'[{"report_id":"'.join(parts)),
    form=st.sampled_from(list(RecordForm)),
)
@example(body=b"[" * 100_000, form=RecordForm.JSON)
@example(body=b'{"report_id":' * 100_000, form=RecordForm.LINES)
@example(body=b'{"data":' * 100_000, form=RecordForm.CLOUDEVENT)
@example(body=b"\xef\xbb\xbf[]", form=RecordForm.JSON)
@example(body=b'[{"severity":' + b"1" * 10_000 + b"}]", form=RecordForm.JSON)
@example(body=b'["\\ud800' + b'",' * 3, form=RecordForm.JSON)
def test_codec_survives_any_bytes_and_accepts_only_canonical_lines(body: bytes, form: RecordForm) -> None:
    decoded = CODEC.decode(body, form)
    if isinstance(decoded, Decoded):
        lines = decoded.lines.split(b"\n") if decoded.count else []
        assert len(lines) == decoded.count == len(decoded.digests)
        for line in lines:
            assert set(json.loads(line)) <= set(REPORTS.names)
        if lines:
            again = CODEC.decode(decoded.lines, RecordForm.LINES)
            assert again == Decoded(decoded.lines, decoded.count, decoded.digests, [])
        indexes = [refusal.index for refusal in decoded.refusals]
        assert indexes == sorted(set(indexes))


@settings(max_examples=100)
@given(
    records=st.lists(
        st.fixed_dictionaries(
            {"report_id": st.text()},
            optional={
                "severity": st.integers(-(2**31), 2**31 - 1) | st.none(),
                "lat": st.floats(allow_nan=False, allow_infinity=False),
                "message": st.text() | st.sampled_from(['":', '\\":', ":", '"']),
            },
        ),
        min_size=1,
        max_size=8,
    ),
    ensure_ascii=st.booleans(),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]),
)
def test_good_records_are_stored_as_sent_in_any_json_spelling(
    records: list[dict[str, Any]], ensure_ascii: bool, separators: tuple[str, str]
) -> None:
    text = json.dumps(records, ensure_ascii=ensure_ascii, separators=separators)
    assert stored(CODEC, text.encode()) == records


@pytest.mark.parametrize(
    ("content_type", "form"),
    [
        ("application/json; charset=utf-8", RecordForm.JSON),
        ("Application/X-NDJSON", RecordForm.LINES),
        ("application/cloudevents-batch+json", RecordForm.CLOUDEVENTS_BATCH),
        ("text/html", None),
    ],
)
def test_content_type_gives_the_form(content_type: str, form: RecordForm | None) -> None:
    assert RecordForm.of_content_type(content_type) is form


def test_msgspec_writes_six_digits_and_z_as_the_codec_expects() -> None:
    """The fast path relies on msgspec to write UTC times with a fraction: all six digits and a Z."""
    times = ["2026-11-15T18:00:00.100000Z", "2026-11-15T18:00:00.000001Z"]
    lines = decode(CODEC, [{"report_id": "a", "reported_at": time} for time in times]).lines
    assert [msgspec.json.decode(line)["reported_at"] for line in lines.split(b"\n")] == times


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["05Z", "05.000000Z", "05.25Z", "05", "05.5", "05+00:00", "05.000001+02:00", None])))
def test_mixed_time_spellings_are_decoded_like_single_ones(endings: list[str | None]) -> None:
    records = [
        {"report_id": "a", "reported_at": None if ending is None else f"2026-11-15T18:00:{ending}"}
        for ending in endings
    ]
    alone = [line for record in records for line in decode(CODEC, [record]).lines.split(b"\n")]
    assert decode(CODEC, records).lines == b"\n".join(alone)


def test_body_that_begins_with_a_thousand_wrong_records_is_not_read_on() -> None:
    wrong, good = "1", '{"id": "a"}'
    codec = RecordCodec(Schema((Column("id", "STRING"),)), key=("id",))

    def decoded(records: list[str], may_give_up: bool) -> tuple[int, int, int]:
        found = codec.decode(f"[{','.join(records)}]".encode(), RecordForm.JSON, may_give_up=may_give_up)
        assert isinstance(found, Decoded)
        return found.count, len(found.refusals), found.not_read

    hopeless = [wrong] * HOPELESS + [good] * 20
    assert decoded(hopeless, may_give_up=True) == (0, HOPELESS, 20)
    assert decoded(hopeless, may_give_up=False) == (20, HOPELESS, 0), "a recording must not lose the good ones"
    assert decoded([good, *hopeless], may_give_up=True) == (21, HOPELESS, 0)
