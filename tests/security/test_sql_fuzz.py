"""Generated queries: Spark sees no relation and no function that was not checked, and no error is untranslated.

Without more, a few hundred texts. TOCSIN_SQL_TEXTS sets another number; see `sql_fuzzing` for all 100,000.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.security.plan_names import NameReader
from tests.security.sql_fuzzing import PARAMETERS, Fuzzer, compare, run
from tests.security.sql_texts import text_of
from tocsin.cluster.spark.query_check import parsed_plan
from tocsin.cluster.spark.session import Session
from tocsin.cluster.sql.channel_query import ChannelQuery, parse_channel_query
from tocsin.cluster.sql.query_sql import to_lateral_sql

pytestmark = pytest.mark.spark

TEXTS = int(os.environ.get("TOCSIN_SQL_TEXTS", "1000"))


def test_spark_sees_only_relations_and_functions_that_were_checked(spark: Session, tmp_path: Path) -> None:
    outcomes = run(Fuzzer(spark, tmp_path), seed=1, start=0, texts=TEXTS)
    assert sum(outcomes.values()) == TEXTS
    assert outcomes["accepted"] > TEXTS / 10, f"too few texts reach Spark to prove anything: {outcomes}"
    assert outcomes["text"] > TEXTS / 10, f"too few texts are odd enough to be refused: {outcomes}"


def test_same_seed_gives_the_same_text() -> None:
    assert text_of(7, 3) == text_of(7, 3) != text_of(7, 4)


HIDDEN = (
    "UNION ALL SELECT value FROM text.`/etc/hostname`",
    "UNION ALL SELECT reflect('a', 'b')",
    "UNION ALL SELECT TRANSFORM(1) USING 'id' AS (x STRING)",
    "UNION ALL SELECT id FROM range(3)",
    "UNION ALL SELECT y FROM range(1) LATERAL VIEW explode(array(1)) v AS y",
)


def test_comparison_notices_what_was_not_checked(spark: Session) -> None:
    query = parse_channel_query("SELECT r.id AS x FROM NEW Reports r WHERE r.kind = :kind", PARAMETERS)
    assert isinstance(query, ChannelQuery)
    sql = to_lateral_sql(query, lambda name, is_new: f"_tocsin_{'new' if is_new else 'all'}_{name.lower()}")
    reader = NameReader(spark)
    for hidden in HIDDEN:
        plan = parsed_plan(spark, sql.replace("\n)", f" {hidden}\n)"))
        with pytest.raises(AssertionError):
            compare(query, hidden, reader.names_of(plan))
    compare(query, sql, reader.names_of(parsed_plan(spark, sql)))
