"""The codec takes what the schema allows, says what is wrong with the rest, and writes one spelling of each value."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tocsin.cluster.feed.recordforms import Malformed, RecordForm, RecordRefusal, TooMany
from tocsin.cluster.feed.records import Decoded, RecordCodec
from tocsin.model.schema import Schema

REPORTS = Schema.of(
    report_id="STRING", kind="STRING", severity="INT", lat="DOUBLE", lon="DOUBLE", message="STRING",
    reported_at="TIMESTAMP",
)  # fmt: skip
CODEC = RecordCodec(REPORTS, key=("report_id",))
EVENT = {"id": "1", "source": "/meter", "type": "report", "specversion": "1.0"}


def decode(codec: RecordCodec, body: Any, form: RecordForm = RecordForm.JSON) -> Decoded:
    found = codec.decode(body if isinstance(body, bytes) else json.dumps(body).encode(), form)
    assert isinstance(found, Decoded), found
    return found


def stored(codec: RecordCodec, body: Any, form: RecordForm = RecordForm.JSON) -> list[Any]:
    found = decode(codec, body, form)
    assert found.refusals == []
    return [json.loads(line) for line in found.lines.split(b"\n")]


def value_of(column_type: str, literal: str) -> str | RecordRefusal:
    """What becomes of one JSON literal in a column of that type: its canonical text, or the refusal."""
    found = decode(RecordCodec(Schema.of(v=column_type)), f'[{{"v":{literal}}}]'.encode())
    if found.refusals:
        return found.refusals[0]
    return found.lines.decode()[len('{"v":') : -1]


def test_columns_come_out_in_schema_order_and_missing_ones_are_left_out() -> None:
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
    found = decode(CODEC, body, form)
    assert found.lines == b'{"report_id":"a"}\n{"report_id":"b"}'
    assert found.count == 2
    assert found.digests == [CODEC.digests(line)[0] for line in found.lines.split(b"\n")]


def test_a_single_object_may_span_lines() -> None:
    assert stored(CODEC, b'{\n "report_id": "a",\n "severity": 2\n}') == [{"report_id": "a", "severity": 2}]


def test_a_single_cloudevent_carries_its_record_in_data() -> None:
    event = {**EVENT, "data": {"report_id": "a"}, "subject": "ignored"}
    assert stored(CODEC, event, RecordForm.CLOUDEVENT) == [{"report_id": "a"}]


@pytest.mark.parametrize(
    ("change", "field"),
    [({"source": None}, "source"), ({"id": ""}, "id"), ({"specversion": "0.3"}, "specversion"), ({"data": 1}, None)],
)
def test_a_cloudevent_without_its_required_attributes_is_refused_alone(
    change: dict[str, Any], field: str | None
) -> None:
    events = [{**EVENT, "data": {"report_id": "a"}}, {**EVENT, "data": {"report_id": "b"}, **change}]
    found = decode(CODEC, events, RecordForm.CLOUDEVENTS_BATCH)
    assert found.lines == b'{"report_id":"a"}'
    assert [(refusal.index, refusal.field) for refusal in found.refusals] == [(1, field)]


def test_a_cloudevent_without_data_says_where_the_record_goes() -> None:
    found = decode(CODEC, {**EVENT, "data_base64": "e30="}, RecordForm.CLOUDEVENT)
    assert found.refusals == [RecordRefusal(0, "data", "the record goes into `data` as JSON, not data_base64")]


def test_each_bad_record_is_refused_with_index_field_and_reason_while_good_ones_pass() -> None:
    body = [
        {"report_id": "a"},
        {"report_id": "b", "severity": "high"},
        {"severity": 1},
        {"report_id": "d", "mesage": "typo"},
        {"report_id": None},
        7,
        {"report_id": "g", "reported_at": 1763229600},
    ]
    found = decode(CODEC, body)
    assert found.lines == b'{"report_id":"a"}'
    assert found.count == len(found.digests) == 1
    assert found.refusals == [
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
def test_a_value_has_one_spelling(column_type: str, literal: str, canonical: str) -> None:
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
def test_a_value_that_does_not_fit_its_column_costs_that_record_alone(column_type: str, literal: str) -> None:
    codec = RecordCodec(Schema.of(v=column_type))
    for separator, form in ((",", RecordForm.JSON), ("\n", RecordForm.LINES)):
        text = separator.join(['{"v":null}', f'{{"v":{literal}}}', '{"v":null}'])
        found = codec.decode((f"[{text}]" if form is RecordForm.JSON else text).encode(), form)
        if isinstance(found, Malformed):  # nesting beyond what any parser here follows cannot be isolated in an array
            assert "nested" in found.reason
            continue
        assert isinstance(found, Decoded)
        assert [refusal.index for refusal in found.refusals] == [1]
        assert found.refusals[0].reason
        assert found.count == 2


def test_bytes_that_are_no_utf8_cost_only_their_record() -> None:
    found = decode(CODEC, b'[{"report_id":"a"},{"report_id":"\xff"}]')
    assert found.lines == b'{"report_id":"a"}'
    assert found.refusals == [RecordRefusal(1, None, "not valid UTF-8")]


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
def test_a_field_that_is_there_twice_is_refused_even_beside_a_record_that_lacks_one(twice: bytes) -> None:
    found = decode(CODEC, b'[{"report_id":"good"},' + twice + b',{"report_id" : "blank"}]')
    assert found.lines == b'{"report_id":"good"}\n{"report_id":"blank"}'
    assert [(refusal.index, refusal.reason) for refusal in found.refusals] == [(1, "the field is there twice")]


@pytest.mark.parametrize("after", [b"", b',{"report_id":"b"}'])
@pytest.mark.parametrize("same", [b'"kind":"a","kind":"a"', b'"kind":"a","kind":"b"', b'"severity":1,"severity":1'])
def test_twice_is_refused_also_where_all_else_is_spelled_as_it_is_stored(same: bytes, after: bytes) -> None:
    found = decode(CODEC, b'[{"report_id":"a"},{"report_id":"x",' + same + b"}" + after + b"]")
    assert [(refusal.index, refusal.reason) for refusal in found.refusals] == [(1, "the field is there twice")]


@pytest.mark.parametrize(
    "body", [b"", b"  ", b"[", b"[1,", b'[{"report_id":"a"}] x', b'[{"report_id":"a"} {"report_id":"b"}]', b"[]]"]
)
def test_a_body_that_is_no_json_at_all_is_malformed_as_a_whole(body: bytes) -> None:
    assert isinstance(CODEC.decode(body, RecordForm.JSON), Malformed)


def test_more_records_than_allowed_are_refused_whatever_they_are() -> None:
    codec = RecordCodec(REPORTS, max_records=3)
    for element in ("{}", "1", '{"report_id":"{{{{"}'):
        assert codec.decode(f"[{','.join([element] * 4)}]".encode(), RecordForm.JSON) == TooMany(3)
        assert codec.decode("\n".join([element] * 4).encode(), RecordForm.LINES) == TooMany(3)
    assert decode(codec, [{"report_id": "{{{{"}] * 3).count == 3


def test_a_column_may_be_named_like_a_python_keyword() -> None:
    codec = RecordCodec(Schema.of(**{"class": "STRING", "from": "INT"}), key=("class",))
    assert stored(codec, [{"class": "a", "from": 1}]) == [{"class": "a", "from": 1}]


def test_equal_keys_in_different_spelling_have_one_digest() -> None:
    codec = RecordCodec(Schema.of(a="STRING", b="TIMESTAMP", c="DOUBLE", d="DECIMAL(5,2)"), key=("a", "b", "c", "d"))
    first = {"a": "x", "b": "2026-11-15T18:00:00Z", "c": 0, "d": 1}
    second = {"a": "x", "b": "2026-11-15T20:00:00+02:00", "c": -0.0, "d": "1.00"}
    other = {"a": "x", "b": "2026-11-15T18:00:00.000001Z", "c": 0, "d": 1}
    digests = decode(codec, [first, second, other]).digests
    assert digests[0] == digests[1] != digests[2]
    assert {len(digest) for digest in digests} == {16}


def test_composite_keys_do_not_run_into_each_other() -> None:
    codec = RecordCodec(Schema.of(a="STRING", b="STRING"), key=("a", "b"))
    body = [{"a": "x", "b": "yz"}, {"a": "xy", "b": "z"}, {"a": 'x","y', "b": "z"}, {"a": "", "b": "xyz"}]
    assert len(set(decode(codec, body).digests)) == 4


def test_digests_are_found_again_from_the_stored_lines() -> None:
    for key in (("report_id",), ("reported_at", "severity")):
        codec = RecordCodec(REPORTS, key=key)
        records = [{"report_id": str(n), "severity": n, "reported_at": f"2026-11-15T18:00:0{n}Z"} for n in range(5)]
        found = decode(codec, records)
        assert codec.digests(found.lines) == found.digests


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
def test_no_bytes_whatever_crash_the_codec_and_what_it_accepts_is_canonical(body: bytes, form: RecordForm) -> None:
    found = CODEC.decode(body, form)
    if isinstance(found, Decoded):
        lines = found.lines.split(b"\n") if found.count else []
        assert len(lines) == found.count == len(found.digests)
        for line in lines:
            assert set(json.loads(line)) <= set(REPORTS.names)
        if lines:
            again = CODEC.decode(found.lines, RecordForm.LINES)
            assert again == Decoded(found.lines, found.count, found.digests, [])
        indexes = [refusal.index for refusal in found.refusals]
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
def test_good_records_are_stored_as_sent_however_they_are_written(
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
def test_the_content_type_names_the_form(content_type: str, form: RecordForm | None) -> None:
    assert RecordForm.of_content_type(content_type) is form


def test_msgspec_writes_what_the_codec_relies_on() -> None:
    """The fast path leaves UTC times with a fraction to msgspec: it must write all six digits and a Z."""
    times = ["2026-11-15T18:00:00.100000Z", "2026-11-15T18:00:00.000001Z"]
    lines = decode(CODEC, [{"report_id": "a", "reported_at": time} for time in times]).lines
    assert [msgspec.json.decode(line)["reported_at"] for line in lines.split(b"\n")] == times


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["05Z", "05.000000Z", "05.25Z", "05", "05.5", "05+00:00", "05.000001+02:00", None])))
def test_times_in_any_mixture_of_spellings_come_out_as_each_would_alone(endings: list[str | None]) -> None:
    records = [
        {"report_id": "a", "reported_at": None if ending is None else f"2026-11-15T18:00:{ending}"}
        for ending in endings
    ]
    alone = [line for record in records for line in decode(CODEC, [record]).lines.split(b"\n")]
    assert decode(CODEC, records).lines == b"\n".join(alone)
