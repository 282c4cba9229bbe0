"""Compares what Tocsin and Spark see in generated channel queries.

Every text of `sql_texts` passes through the checks that a channel passes. If the checks of the text and of the parsed
plan accept it, Spark's parsed plan is read again in another way than the check reads it, as JSON: its relations and
functions must be those that the check has seen in the text. To run all texts of the acceptance:

    python -m tests.security.sql_fuzzing --texts 100000
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from sqlglot import exp

from tests.security.plan_names import NameReader, PlanNames
from tests.security.sql_texts import text_of
from tocsin.cluster.spark.errors import SPARK_ERRORS, first_line
from tocsin.cluster.spark.plan_walk import plan_nodes
from tocsin.cluster.spark.preparing import in_authors_words
from tocsin.cluster.spark.query_check import QueryRefused, check_parsed, check_tokens, checked_frame, parsed_plan
from tocsin.cluster.spark.session import Session, make_session
from tocsin.cluster.sql.channel_query import ChannelQuery, parse_channel_query
from tocsin.cluster.sql.query_sql import SUBSCRIPTIONS_VIEW, to_lateral_sql
from tocsin.model.schema import Schema

PARAMETERS = Schema.of(kind="STRING", least="INT", radius_m="DOUBLE")
DATASETS = {
    "reports": "id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, at TIMESTAMP, tags ARRAY<STRING>",
    "places": "user_id STRING, lat DOUBLE, lon DOUBLE, at TIMESTAMP",
}
UNTRANSLATED = re.compile(
    r"org\.apache|java\.lang|Py4J|SQLSTATE|_tocsin|Traceback|^\s*\[[A-Z_.]+\]|== SQL|unresolvedalias|\n", re.IGNORECASE
)
"""Texts of Spark, Java or the generated SQL that an author cannot understand."""

ANALYSED = 20
"""One text of so many is analysed as well, which takes longer than all other checks together."""


class Fuzzer:
    """Puts texts through the checks of a channel, in a session with empty datasets."""

    def __init__(self, spark: Session, folder: Path) -> None:
        self._session = spark.newSession()
        self._reader = NameReader(spark)
        for name, columns in DATASETS.items():
            frame = self._session.read.schema(f"{columns}, _tocsin_version BIGINT").parquet(folder.as_uri())
            for kind in ("new", "all"):
                frame.drop("_tocsin_version").createOrReplaceTempView(f"_tocsin_{kind}_{name}")
        subscriptions = f"_tocsin_subscription BIGINT, {PARAMETERS.ddl()}"
        self._session.createDataFrame([], subscriptions).createOrReplaceTempView(SUBSCRIPTIONS_VIEW)

    def outcome_of(self, text: str, *, with_analysis: bool = True) -> str:
        """`text`, `plan` or `spark`, which refused the query, or `accepted`. Raises if Spark sees something else."""
        query = parse_channel_query(text, PARAMETERS)
        if not isinstance(query, ChannelQuery):
            for problem in query:
                _check_message(problem.message, text)
            return "text"
        names = {name.lower() for name in query.datasets | query.new_datasets}
        if not names <= DATASETS.keys():
            return "text"
        views = {_view(name, is_new) for name in names for is_new in (True, False)} | {SUBSCRIPTIONS_VIEW}
        sql = to_lateral_sql(query, _view)
        try:
            check_tokens(self._session, query.text)
            plan = parsed_plan(self._session, sql)
            check_parsed(query, plan_nodes(self._session, plan), views)
            compare(query, text, self._reader.names_of(plan))
            if with_analysis:
                checked_frame(self._session, query, sql, views)
        except QueryRefused as error:
            _check_message(error.message, text)
            return "plan"
        except SPARK_ERRORS as error:
            _check_message(in_authors_words(first_line(error), query), text)
            return "spark"
        return "accepted"


def _view(dataset: str, is_new: bool) -> str:
    return f"_tocsin_{'new' if is_new else 'all'}_{dataset.lower()}"


def _check_message(message: str, text: str) -> None:
    found = UNTRANSLATED.search(message)
    quoted = found is not None and found.group().strip() and found.group().lower() in text.lower()
    assert found is None or quoted, f"untranslated {found.group()!r} in {message!r} for {text!r}"


_OF_NEAR = """
    abs asin array ceil coalesce cos degrees explode flatten floor greatest isnan least pmod pow radians sequence
    shiftleft sin sqrt transform"""
GENERATED = frozenset(_OF_NEAR.split())
"""The functions with which `near` is written."""


def compare(query: ChannelQuery, text: str, names: PlanNames) -> None:
    """Fail if a plan has relations or functions that the query does not have."""
    declared = {f"[{cte.alias.lower()}]" for cte in query.ast.find_all(exp.CTE)}
    expected = {f"[{_view(table.dataset, table.is_new)}]" for table in query.references} | {f"[{SUBSCRIPTIONS_VIEW}]"}
    assert names.relations - declared == expected, (names.relations, expected, text)
    called = {
        token.text.lower()
        for token, following in zip(query.tokens, query.tokens[1:], strict=False)
        if token.is_identifier and following.is_symbol("(")
    }
    unseen = names.functions - called - (GENERATED if query.geo_calls else frozenset())
    assert unseen <= _OF_SYNTAX, (unseen, text)
    assert not names.others, (names.others, text)


_OF_SYNTAX = frozenset(
    {"concat", "current_date", "current_timestamp", "date_part", "extract", "named_struct", "struct"}
)
"""Functions that Spark writes for other syntax: `a || b`, `(a, b)`, `EXTRACT(…)`, `CURRENT_DATE`."""


def run(
    fuzzer: Fuzzer, seed: int, start: int, texts: int, report: Callable[[int, Counter[str]], None] | None = None
) -> Counter[str]:
    """Try texts `start` to `start + texts` of a seed, and count the outcomes."""
    outcomes: Counter[str] = Counter()
    for number in range(start, start + texts):
        outcomes[fuzzer.outcome_of(text_of(seed, number), with_analysis=number % ANALYSED == 0)] += 1
        if report is not None and (number + 1) % 1000 == 0:
            report(number + 1 - start, outcomes)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="number of the first text")
    arguments = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(make_session("local[1]"), Path(folder))

        def report(done: int, outcomes: Counter[str]) -> None:
            sys.stderr.write(f"{done} texts in {time.monotonic() - began_s:.0f} s: {dict(outcomes)}\n")

        outcomes = run(fuzzer, arguments.seed, arguments.start, arguments.texts, report)
    taken_s = round(time.monotonic() - began_s)
    sys.stdout.write(json.dumps({"texts": arguments.texts, "seconds": taken_s, **outcomes}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
