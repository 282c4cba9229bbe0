"""Which rows and subscriptions a query allows an execution to leave out; in all doubtful cases none."""

from __future__ import annotations

import pytest

from tocsin.cluster.sql.channel_query import ChannelQuery, parse_channel_query
from tocsin.cluster.sql.narrowing import EqualParameters, EqualRows, Narrowing, NearRows, find_narrowing
from tocsin.model.entities import Dataset, DatasetKind
from tocsin.model.ids import DatasetName
from tocsin.model.schema import Schema

PARAMETERS = Schema.of(person="STRING", n="INT", radius_m="DOUBLE")
DATASETS = {
    "reports": Dataset(
        DatasetName("Reports"),
        DatasetKind.STREAM,
        Schema.of(id="STRING", kind="STRING", n="INT", big="BIGINT", lat="DOUBLE", lon="DOUBLE", text="STRING"),
    ),
    "people": Dataset(
        DatasetName("People"),
        DatasetKind.KEYED,
        Schema.of(person="STRING", kind="STRING", n="INT", ratio="DOUBLE", lat="DOUBLE", lon="DOUBLE", named="STRING"),
        ("person",),
    ),
}
NEAR = "near(r.lat, r.lon, p.lat, p.lon, 1000)"
NEAR_ROWS = NearRows(("lat", "lon"), "Reports", ("lat", "lon"), 1000.0, None)
SAME_KIND = EqualRows(("kind",), "Reports", ("kind",))
OF_PERSON = EqualParameters(("person",), "People", False, ("person",))


def narrowing(text: str) -> Narrowing:
    query = parse_channel_query(text, PARAMETERS)
    assert isinstance(query, ChannelQuery), query
    return find_narrowing(query, DATASETS)


def test_near_and_equality_narrow_rows_then_subscriptions() -> None:
    found = narrowing(f"SELECT r.id FROM NEW Reports r JOIN People p ON {NEAR} WHERE p.person = :person")
    assert found == Narrowing({"People": (NEAR_ROWS,)}, (OF_PERSON,))


def test_all_equalities_of_a_relation_count_together() -> None:
    found = narrowing(
        "SELECT r.id FROM NEW Reports r JOIN People p ON (r.kind = p.kind AND p.n = (r.n)) "
        "WHERE :person = r.kind AND r.n = :n AND p.person = :person"
    )
    assert found.rows == {"People": (EqualRows(("kind", "n"), "Reports", ("kind", "n")),)}
    assert found.subscriptions == (EqualParameters(("person", "n"), "Reports", True, ("kind", "n")), OF_PERSON)


def test_radius_may_be_a_parameter() -> None:
    found = narrowing("SELECT r.id FROM NEW Reports r, People p WHERE near(p.lat, p.lon, r.lat, r.lon, :radius_m)")
    assert found.rows == {"People": (NearRows(("lat", "lon"), "Reports", ("lat", "lon"), None, "radius_m"),)}


def test_columns_need_no_qualifier_beside_no_other_relation() -> None:
    assert narrowing("SELECT id FROM NEW Reports WHERE kind = :person").subscriptions == (
        EqualParameters(("person",), "Reports", True, ("kind",)),
    )
    assert (
        narrowing("SELECT r.id FROM NEW Reports r JOIN People p ON r.n = p.n WHERE text = :person").subscriptions == ()
    )


@pytest.mark.parametrize(
    "from_",
    [
        "NEW Reports r JOIN People p ON {}",
        "NEW Reports r LEFT JOIN People p ON {}",
        "NEW Reports r LEFT SEMI JOIN People p ON {}",
        "People p JOIN NEW Reports r ON {}",
        "NEW Reports r, People p WHERE {}",
        "NEW Reports r LEFT JOIN People p ON r.n < p.n WHERE {}",
        "NEW Reports r FULL JOIN People p ON r.n < p.n WHERE {}",
    ],
)
@pytest.mark.parametrize(("condition", "step"), [(NEAR, NEAR_ROWS), ("r.kind = p.kind", SAME_KIND)], ids=["near", "="])
def test_rows_without_a_match_are_left_out(from_: str, condition: str, step: NearRows | EqualRows) -> None:
    assert narrowing(f"SELECT r.id FROM {from_.format(condition)}").rows["People"] == (step,)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT p.person FROM People p LEFT JOIN NEW Reports r ON r.kind = p.kind",
        "SELECT p.person FROM NEW Reports r RIGHT JOIN People p ON r.kind = p.kind",
        "SELECT p.person FROM NEW Reports r FULL JOIN People p ON r.kind = p.kind",
        "SELECT r.id FROM NEW Reports r LEFT ANTI JOIN People p ON r.kind = p.kind",
        "SELECT r.id FROM NEW Reports r WHERE r.kind NOT IN (SELECT p.kind FROM People p)",
        "SELECT r.id FROM NEW Reports r JOIN People p ON r.kind = p.kind JOIN People q ON q.n = r.n",
        "SELECT r.id FROM NEW Reports r JOIN People p ON r.kind = p.kind WHERE EXISTS (SELECT 1 FROM People)",
        "SELECT r.id FROM NEW Reports r JOIN People p ON r.kind = p.kind OR r.n = p.n",
        "SELECT r.id FROM NEW Reports r JOIN People p ON NOT r.kind = p.kind",
        "SELECT r.id FROM NEW Reports r JOIN People p ON r.kind <=> p.kind",
        "SELECT r.id FROM NEW Reports r JOIN People p ON r.big = p.n",
        "SELECT r.id FROM NEW Reports r JOIN People p ON p.ratio = r.lat",
        "SELECT r.id FROM NEW Reports r JOIN People p ON upper(r.kind) = p.kind",
        "SELECT r.id FROM NEW Reports r JOIN People p ON r.kind = p.kind COLLATE UTF8_LCASE",
        "SELECT r.id FROM NEW Reports r JOIN People p USING (kind)",
        "SELECT r.id FROM NEW Reports r NATURAL JOIN People p",
        "SELECT r.id FROM NEW Reports r JOIN People p ON near(r.lat, r.lon, p.lat, p.n, 10)",
        "SELECT r.id FROM NEW Reports r JOIN People p ON near(r.lat, r.lon, p.lat, p.lon, p.n)",
        "SELECT r.id FROM NEW Reports r JOIN People p ON near(r.lat, r.lon, p.lat, p.lon, 30000000)",
        "SELECT r.id FROM NEW Reports r JOIN (SELECT * FROM People) p ON r.kind = p.kind",
        "SELECT r.id FROM NEW Reports r JOIN People p(a, b, c, d, e, f, g) ON r.kind = p.b",
        "SELECT count(*) FROM People p WHERE p.person = :person",
    ],
)
def test_rows_that_may_change_the_result_stay(text: str) -> None:
    assert narrowing(text).rows == {}


def test_rows_are_left_out_inside_a_subquery_and_beside_aggregates() -> None:
    found = narrowing(
        f"SELECT r.id, c.n FROM NEW Reports r JOIN (SELECT r.id, count(*) AS n FROM NEW Reports r JOIN People p "
        f"ON {NEAR} GROUP BY r.id) c ON c.id = r.id WHERE r.kind = :person"
    )
    assert found.rows == {"People": (NEAR_ROWS,)}
    assert found.subscriptions == (EqualParameters(("person",), "Reports", True, ("kind",)),)
    assert narrowing(f"SELECT count(*) AS n FROM NEW Reports r JOIN People p ON {NEAR}").rows == {
        "People": (NEAR_ROWS,)
    }


@pytest.mark.parametrize(
    "text",
    [
        "SELECT DISTINCT r.kind FROM NEW Reports r WHERE r.kind = :person ORDER BY r.kind LIMIT 3",
        "SELECT r.n, count(*) AS c FROM NEW Reports r WHERE r.kind = :person GROUP BY r.n HAVING count(*) > 1",
        "SELECT r.id FROM NEW Reports r LEFT JOIN People p ON p.n = r.n WHERE r.kind = :person",
        "SELECT r.id FROM NEW Reports r RIGHT JOIN People p ON p.n = r.n WHERE r.kind = :person",
        "SELECT r.id FROM NEW Reports r JOIN People p ON p.n = r.n AND r.kind = :person",
        "WITH q AS (SELECT * FROM People) SELECT r.id FROM NEW Reports r JOIN q ON q.n = r.n WHERE r.kind = :person",
    ],
)
def test_subscriptions_without_a_row_are_left_out(text: str) -> None:
    assert narrowing(text).subscriptions == (EqualParameters(("person",), "Reports", True, ("kind",)),)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) AS c FROM NEW Reports r WHERE r.kind = :person",
        "SELECT 1 AS one FROM NEW Reports r WHERE r.kind = :person HAVING count(*) = 0",
        "SELECT r.n, count(*) AS c FROM NEW Reports r WHERE r.kind = :person GROUP BY ROLLUP (r.n)",
        "SELECT r.n, count(*) AS c FROM NEW Reports r WHERE r.kind = :person GROUP BY r.n GROUPING SETS ((r.n), ())",
        "SELECT count(*) AS c FROM NEW Reports r WHERE r.kind = :person GROUP BY ALL",
        "SELECT r.id FROM NEW Reports r WHERE r.kind = :person UNION ALL SELECT id FROM NEW Reports",
        "WITH q AS (SELECT * FROM NEW Reports WHERE kind = :person) SELECT count(*) AS c FROM q",
        "SELECT p.person FROM NEW Reports r LEFT JOIN People p ON p.person = :person",
        "SELECT p.person FROM NEW Reports r JOIN People p ON r.kind = :person RIGHT JOIN People q ON q.n = p.n",
        "SELECT r.id FROM NEW Reports r WHERE r.kind = :person OR r.n > 1",
        "SELECT r.id FROM NEW Reports r WHERE r.kind <=> :person",
        "SELECT r.id FROM NEW Reports r WHERE r.big = :n",
        "SELECT r.id FROM NEW Reports r WHERE r.lat = :radius_m",
        "SELECT r.id FROM NEW Reports r WHERE lower(r.kind) = :person",
        "SELECT r.id FROM NEW Reports r WHERE NOT (r.kind = :person)",
        "SELECT r.id FROM (SELECT * FROM NEW Reports) r WHERE r.kind = :person",
    ],
)
def test_subscriptions_that_may_have_results_stay(text: str) -> None:
    assert narrowing(text).subscriptions == ()
