"""Generated queries: Spark sees no relation and no function that was not checked, and no error is untranslated.

Without more, a few hundred texts. TOCSIN_SQL_TEXTS sets another number; see `sql_fuzzing` for all 100,000.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.security.sql_fuzzing import Fuzzer, run
from tests.security.sql_texts import text_of
from tocsin.cluster.spark.session import Session

pytestmark = pytest.mark.spark

TEXTS = int(os.environ.get("TOCSIN_SQL_TEXTS", "1000"))


def test_spark_sees_only_relations_and_functions_that_were_checked(spark: Session, tmp_path: Path) -> None:
    outcomes = run(Fuzzer(spark, tmp_path), seed=1, start=0, texts=TEXTS)
    assert sum(outcomes.values()) == TEXTS
    assert outcomes["accepted"] > TEXTS / 10, f"too few texts reach Spark to prove anything: {outcomes}"
    assert outcomes["text"] > TEXTS / 10, f"too few texts are odd enough to be refused: {outcomes}"


def test_same_seed_gives_the_same_text() -> None:
    assert text_of(7, 3) == text_of(7, 3) != text_of(7, 4)
