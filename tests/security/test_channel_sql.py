"""Channel queries that try to run code, read files or learn about the server: refused before Spark evaluates anything.

Each hostile text carries a canary: a command that makes a file, a call that sets a property of the JVM, or a file that
it reads. The tests check the canary besides the refusal, because a refusal that comes too late is none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.emergency import APPLICATION, NORTH, declare, report
from tests.conftest import publish, results_of
from tocsin.cluster.applying import ApplicationRefused, apply
from tocsin.cluster.engine import DataCluster
from tocsin.cluster.settings import ClusterSettings
from tocsin.cluster.spark.plan_walk import plan_nodes
from tocsin.cluster.spark.query_check import parsed_plan
from tocsin.cluster.spark.session import Session

pytestmark = pytest.mark.spark

PROPERTY = "tocsin.canary"
SET = f"reflect('java.lang.System', 'setProperty', '{PROPERTY}', 'set')"
FROM = "SELECT r.id FROM NEW Reports r WHERE r.kind = :kind"

# sqlglot ends a `--` comment at the line; Spark continues it after a backslash. So sqlglot takes the second line for a
# string, and Spark takes the third for code, unless the comment is removed before either reads the text.
HIDDEN = {
    "shell": "SELECT TRANSFORM(1) USING 'touch {canary}' AS (x STRING)",
    "shell, as MAP": "FROM (MAP 1 USING 'touch {canary}' AS x) SELECT x",
    "path": "SELECT value FROM text.`{secret}`",
    "reflect": f"SELECT * FROM VALUES ({SET})",
    "reflect in a lambda": f"SELECT element_at(transform(array(1), x -> {SET}), 1)",
}

HOSTILE = {
    "reflect behind a dollar quote": FROM + f" AND $$ ' $$ <> {SET} AND $$ ' $$ = ''",
    "reflect behind a raw string": FROM + f" AND r'\\' <> {SET} AND '' = '\\''",
    "reflect in a window definition": (
        f"SELECT max(r.id) OVER w AS x FROM NEW Reports r WHERE r.kind = :kind WINDOW w AS (PARTITION BY {SET})"
    ),
    "reflect in an inline table": f"SELECT x FROM NEW Reports r, VALUES ({SET}) AS v(x) WHERE r.kind = :kind",
    "reflect by a computed name": FROM
    + f" AND identifier('reflect')('java.lang.System', 'setProperty', '{PROPERTY}', 'set') = ''",
    "reflect by a quoted name": FROM + " AND " + SET.replace("reflect", "`reflect`") + " = ''",
    "reflect by a qualified name": FROM + f" AND system.builtin.{SET} = ''",
    "reflect by a quoted qualified name": FROM + " AND " + SET.replace("reflect", "`builtin`.`reflect`") + " = ''",
    "try_reflect": FROM + f" AND try_{SET} = ''",
    "java_method": FROM + f" AND {SET.replace('reflect', 'java_method')} = ''",
    "shell": "SELECT TRANSFORM(r.id) USING 'touch {canary}' AS (x STRING) FROM NEW Reports r WHERE r.kind = :kind",
    "path as a table": "SELECT t.value FROM NEW Reports r, text.`{secret}` t WHERE r.kind = :kind",
    "path as a table, by WITH": (
        "WITH a AS (SELECT * FROM binaryFile.`{secret}`) SELECT a.path FROM NEW Reports r, a WHERE r.kind = :kind"
    ),
    "path in TABLE": FROM + " UNION ALL TABLE text.`{secret}`",
    "descriptor file": FROM + " AND from_protobuf(CAST(r.id AS BINARY), 'M', '{secret}') IS NOT NULL",
    "schema file": FROM + " AND from_avro(CAST(r.id AS BINARY), '\"int\"', map('avroSchemaUrl', '{secret}')) = 1",
    "XSD file": FROM + " AND from_xml(r.id, 'a INT', map('rowValidationXSDPath', '{secret}')).a = 1",
    "catalog of Spark": "SELECT v.name FROM NEW Reports r, spark_catalog.default.v WHERE r.kind = :kind",
    "user of the server": "SELECT current_user AS u FROM NEW Reports r WHERE r.kind = :kind",
    "user of the server, by call": "SELECT session_user() AS u FROM NEW Reports r WHERE r.kind = :kind",
    "catalog": "SELECT current_catalog() AS c FROM NEW Reports r WHERE r.kind = :kind",
    "path": "SELECT input_file_name() AS f FROM NEW Reports r WHERE r.kind = :kind",
    "path in hidden columns": "SELECT r._metadata.file_path AS f FROM NEW Reports r WHERE r.kind = :kind",
    "version of Spark": "SELECT version() AS v FROM NEW Reports r WHERE r.kind = :kind",
}


@pytest.fixture(scope="module")
def cluster(spark: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataCluster]:
    root = tmp_path_factory.mktemp("data")
    cluster = DataCluster(spark, ClusterSettings(root=str(root)), time.time)
    declare(cluster, APPLICATION)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("query", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_query_is_refused_and_nothing_of_it_runs(cluster: DataCluster, query: str, tmp_path: Path) -> None:
    canary, secret = tmp_path / "canary", tmp_path / "secret"
    secret.write_text("the secret of the machine")
    system = _system(cluster)
    system.clearProperty(PROPERTY)
    text = _channel(query, canary, secret)
    with pytest.raises(ApplicationRefused) as refused:
        apply(cluster, text)
    assert not canary.exists()
    assert system.getProperty(PROPERTY) is None
    assert "the secret" not in str(refused.value.problems)
    assert all(problem.line >= 1 and problem.column >= 1 for problem in refused.value.problems)
    assert [live.name for live in cluster.channels.all()] == ["NearMe", "OfKind"]


@pytest.mark.parametrize("code", HIDDEN.values(), ids=HIDDEN.keys())
def test_code_behind_a_continued_comment_is_a_string_for_spark_too(
    cluster: DataCluster, code: str, tmp_path: Path
) -> None:
    canary, secret = tmp_path / "canary", tmp_path / "secret"
    secret.write_text("the secret of the machine")
    system = _system(cluster)
    system.clearProperty(PROPERTY)
    query = f"{FROM} AND '' = -- \\\n \"\n'' UNION ALL {code} -- \""
    apply(cluster, _channel(query, canary, secret))
    try:
        prepared = cluster.channel("Hostile").prepared
        nodes = plan_nodes(prepared.session, parsed_plan(prepared.session, prepared.query.text.replace("NEW ", "")))
        assert not [node for node in nodes if node.kind.endswith(("Union", "ScriptTransformation", "Function"))]
        cluster.subscribe("Hostile", [{"kind": "fire"}], NORTH)
        publish(cluster, "Reports", [report(tmp_path.name)])
        assert cluster.execute("Hostile") is None
        assert not canary.exists()
        assert system.getProperty(PROPERTY) is None
    finally:
        cluster.channels.drop("Hostile")


def test_text_that_looks_like_a_variable_stays_as_written(cluster: DataCluster) -> None:
    names = "'${spark:spark.app.id}' AS a, '${env:PATH}' AS b, '${system:user.home}' AS c"
    apply(cluster, _channel(f"SELECT {names} FROM NEW Reports r WHERE r.kind = :kind"))
    try:
        cluster.subscribe("Hostile", [{"kind": "variable"}], NORTH)
        publish(cluster, "Reports", [report("variable", "variable")])
        cluster.execute("Hostile")
        (result,) = results_of(cluster, "Hostile")[("variable",)]
        assert result == {"a": "${spark:spark.app.id}", "b": "${env:PATH}", "c": "${system:user.home}"}
    finally:
        cluster.channels.drop("Hostile")


def _system(cluster: DataCluster) -> Any:
    jvm: Any = cluster.spark._jvm
    return jvm.java.lang.System


def _channel(query: str, canary: Path | str = "", secret: Path | str = "") -> str:
    written = query.replace("{canary}", str(canary)).replace("{secret}", str(secret))
    return f"CREATE REPETITIVE CHANNEL Hostile (kind STRING) EVERY 5 SECONDS AS {written};"
