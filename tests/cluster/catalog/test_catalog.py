"""The catalog on SQLite and on PostgreSQL: which commits succeed, and which rows are stored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from tests import postgresql
from tocsin.cluster.catalog import (
    Catalog,
    DeadLetter,
    ExecutionOutcome,
    NewExecution,
    NewFile,
    StoredExecution,
    catalog_path,
    dataset_owner,
    results_owner,
    tables,
)
from tocsin.cluster.catalog.trials import OnTrial
from tocsin.cluster.sql.declarations import CreateChannel, CreateDataset, parse_application
from tocsin.model.ids import BrokerId, ChannelName, DatasetName
from tocsin.model.subscription import subscription_id
from tocsin.wire.errors import TocsinError

REPORTS, OF_KIND, NORTH = DatasetName("Reports"), ChannelName("OfKind"), BrokerId("north")
APPLICATION = """
CREATE STREAM DATASET Reports (id STRING, kind STRING) KEY (id) RETAIN 7 DAYS;
CREATE REPETITIVE CHANNEL OfKind (kind STRING) EVERY 10 SECONDS AS
  SELECT r.* FROM NEW Reports r WHERE r.kind = :kind;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    yield from postgresql.running_or_skipped()


@pytest.fixture(params=["sqlite", "postgresql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    url = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("server")
        postgresql.make_empty(url)
    opened = Catalog(url)
    for statement in parse_application(APPLICATION).statements:
        if isinstance(statement, CreateDataset):
            opened.datasets.create(statement.dataset, 1)
        elif isinstance(statement, CreateChannel):
            opened.channels.create(statement.channel, 2, {REPORTS: 0})
    yield opened
    opened.close()


def file(number: int, path: str | None = None) -> NewFile:
    return NewFile(path or f"datasets/Reports/{number}.parquet", 10, 1000, number, number)


def add(catalog: Catalog, version: int) -> None:
    catalog.datasets.commit_records(REPORTS, version, [file(version)], 100.0 + version, position=1000 * version)


def execute(
    catalog: Catalog, execution: int, upto: int, results: int = 5, finished_s: float = 200.0, last: int | None = None
) -> int | None:
    files = [file(execution, f"results/OfKind-2/{execution}.parquet")] if results else []
    interval = (upto - 1, upto)
    stored = catalog.executions.commit(
        StoredExecution(0, OF_KIND, 2, execution, {REPORTS: interval}, results, 50, 190.0, finished_s),
        last or execution,
        files,
        finished_s,
    )
    return None if stored is None else stored.sequence


def test_owner_of_a_dataset_is_stored_with_its_definition(catalog: Catalog) -> None:
    text = "CREATE KEYED DATASET Places (user STRING, lat DOUBLE) KEY (user) OWNED BY user;"
    [statement] = parse_application(text).statements
    assert isinstance(statement, CreateDataset)
    catalog.datasets.create(statement.dataset, 3)
    catalog.datasets.redefine(replace(statement.dataset, owned_by=None))
    assert [stored.dataset.owned_by for stored in catalog.datasets.all()] == [None, None]
    catalog.datasets.redefine(statement.dataset)
    places, reports = catalog.datasets.all()
    assert places.dataset == statement.dataset and (places.generation, places.version) == (3, 0)
    assert reports.dataset.name == REPORTS, "other datasets keep their definition"


def test_definition_written_before_owners_existed_is_loaded(catalog: Catalog) -> None:
    text = (
        '{"name":"Reports","kind":"KEYED","schema":{"columns":[{"name":"id","type":"STRING"}]},'
        '"key":["id"],"order_by":null,"retain_s":null,"source":null}'
    )
    catalog._database.execute(sa.update(tables.datasets).values(definition=text))
    [stored] = catalog.datasets.all()
    assert (stored.dataset.key, stored.dataset.owned_by) == (("id",), None)


def test_catalog_of_an_earlier_release_is_opened(catalog: Catalog) -> None:
    url = str(catalog._database._engine.url.render_as_string(hide_password=False))
    add(catalog, 1)
    add(catalog, 2)
    execute(catalog, 1, 1, finished_s=10.0)
    for statement in (
        "DROP INDEX executions_by_age",
        "DROP INDEX executions_by_number",
        "ALTER TABLE executions DROP COLUMN retained_s",
        "DROP TABLE writes",
        "DROP TABLE contents",
        "DROP TABLE feed_files",
        "DROP TABLE trials",
        "DROP TABLE refusals",
        "DROP TABLE dead_letters",
        "ALTER TABLE channels DROP COLUMN tried",
        "ALTER TABLE files DROP COLUMN widest",
    ):
        catalog._database.execute(sa.text(statement))
    opened = Catalog(url)
    names = {index["name"] for index in sa.inspect(opened._database._engine).get_indexes("executions")}
    assert names == {"executions_by_age", "executions_by_number"}
    assert [stored.execution for stored in opened.executions.page()] == [1]
    execute(opened, 2, 2, finished_s=200.0)
    opened.executions.expire(OF_KIND, 100.0)
    assert [stored.execution for stored in opened.executions.page()] == [2]
    assert opened.writes.open() == {} and opened.dead_letters.counts() == {}
    assert opened.channels.get(OF_KIND).tried is None, "the process then takes all subscriptions for tried"
    assert [stored.widest for stored in opened.files.of(dataset_owner(REPORTS))] == [None, None]
    opened.close()


def test_dead_letters_and_refusals_are_stored_with_the_execution(catalog: Catalog) -> None:
    add(catalog, 1)
    [held] = catalog.subscriptions.subscribe(OF_KIND, [(subscription_id(OF_KIND, ("(",)), '["("]')], NORTH)
    execution = StoredExecution(0, OF_KIND, 2, 1, {REPORTS: (0, 1)}, 0, 0, 190.0, 200.0)
    letters = [DeadLetter(REPORTS, '{"id":"a"}', "no zone"), DeadLetter(REPORTS, "{}", "")]
    outcome = ExecutionOutcome(held.number, letters)
    catalog.executions.commit(execution, 1, [], 200.0, outcome=outcome)
    assert catalog.channels.get(OF_KIND).tried == held.number
    first, second = catalog.dead_letters.page(OF_KIND)
    assert (first.dataset, first.record, first.reason, first.at_s) == (REPORTS, '{"id":"a"}', "no zone", 200.0)
    assert catalog.dead_letters.page(OF_KIND, after=first.id, limit=1) == [second]
    replayed = replace(execution, intervals={REPORTS: (1, 1)})
    catalog.executions.commit(replayed, 1, [], 300.0, outcome=ExecutionOutcome(held.number, replayed=[first.id]))
    assert catalog.dead_letters.page(ids=[first.id, second.id]) == [second]
    assert catalog.dead_letters.discard(OF_KIND, [first.id]) == 0 and catalog.dead_letters.discard(OF_KIND) == 1
    catalog.subscriptions.refuse(OF_KIND, {held.number: "no pattern"})
    assert catalog.subscriptions.refused(OF_KIND) == {held.id: "no pattern"}
    assert not list(catalog.subscriptions.of_channel(OF_KIND)) and not list(catalog.subscriptions.holders())


def test_deaths_and_the_values_on_trial_are_stored_until_a_success(catalog: Catalog) -> None:
    assert catalog.trials.deaths(OF_KIND) == 0
    catalog.trials.add_death(OF_KIND, 1)
    catalog.trials.add_death(OF_KIND, 3)
    catalog.trials.begin(OF_KIND, OnTrial("subscriptions", 3, 9))
    assert (catalog.trials.deaths(OF_KIND), catalog.trials.on_trial(OF_KIND)) == (4, OnTrial("subscriptions", 3, 9))
    catalog.trials.survived(OF_KIND)
    assert (catalog.trials.deaths(OF_KIND), catalog.trials.on_trial(OF_KIND)) == (4, None)
    catalog.trials.clear(OF_KIND)
    assert catalog.trials.deaths(OF_KIND) == 0


def test_evidence_against_a_value_counts_deaths_in_its_own_trials(catalog: Catalog) -> None:
    alone, group = OnTrial("subscriptions", 5, 5), OnTrial("subscriptions", 3, 9)
    catalog.trials.add_death(OF_KIND, 3)
    catalog.trials.begin(OF_KIND, group)
    catalog.trials.add_death(OF_KIND, 3)
    assert catalog.trials.evidence(OF_KIND, group) == catalog.trials.evidence(OF_KIND, alone) == 0
    catalog.trials.begin(OF_KIND, alone)
    catalog.trials.add_death(OF_KIND, 3)
    catalog.trials.add_death(OF_KIND, 1)
    assert catalog.trials.evidence(OF_KIND, alone) == 4
    assert catalog.trials.evidence(OF_KIND, OnTrial("records Reports", 5, 5)) == 0
    catalog.trials.begin(OF_KIND, group)
    catalog.trials.survived(OF_KIND)
    assert catalog.trials.evidence(OF_KIND, alone) == 4, "the trial was of a group"
    catalog.trials.begin(OF_KIND, alone)
    catalog.trials.survived(OF_KIND)
    assert catalog.trials.evidence(OF_KIND, alone) == 0


def test_version_or_interval_that_was_committed_is_refused(catalog: Catalog) -> None:
    for version in (1, 2, 3):
        add(catalog, version)
    assert catalog.datasets.progress(REPORTS) == (3, 3000)
    with pytest.raises(TocsinError, match="two writers"):
        add(catalog, 3)
    assert execute(catalog, 1, 1) == 1
    with pytest.raises(TocsinError, match="ran twice"):
        execute(catalog, 2, 1)
    assert execute(catalog, 2, 2, results=0) is None
    assert execute(catalog, 2, 3) == 2, "the refused commit stored nothing and used no number"
    [channel] = catalog.channels.all()
    assert (channel.execution, channel.positions) == (2, {REPORTS: 3})
    assert [stored.execution for stored in catalog.executions.page(1)] == [2]
    assert [stored.path for stored in catalog.files.of(results_owner("OfKind", 2))] == [
        "results/OfKind-2/1.parquet",
        "results/OfKind-2/2.parquet",
    ]


def test_execution_with_several_numbers_is_named_by_the_first(
    catalog: Catalog,
) -> None:
    add(catalog, 1)
    add(catalog, 2)
    execute(catalog, 1, 1, last=3)
    assert catalog.channels.all()[0].execution == 3
    execute(catalog, 4, 2)
    assert [stored.execution for stored in catalog.executions.page()] == [1, 4]


def test_subscription_is_one_row_until_it_ends_without_a_holder(catalog: Catalog) -> None:
    kinds = ["fire", 'it\'s \\ 100 % "flood" 🔥', "fire"]
    requested = [(subscription_id(OF_KIND, (kind,)), f'["{number}"]') for number, kind in enumerate(kinds[:2])]
    first = catalog.subscriptions.subscribe(OF_KIND, requested, NORTH)
    again = catalog.subscriptions.subscribe(OF_KIND, requested[:1], BrokerId("south"))
    assert [row.created for row in first] == [True, True] and not again[0].created
    assert again[0].number == first[0].number
    ids = [identity for identity, _ in requested]
    assert catalog.subscriptions.unsubscribe(OF_KIND, ids, NORTH) == (
        [row.number for row in first],
        [first[1].number],
    )
    assert catalog.subscriptions.unheld(OF_KIND) == [first[1].number]
    assert catalog.subscriptions.end_unheld([row.number for row in first]) == [first[1].number]
    assert [row[0] for row in catalog.subscriptions.of_channel(OF_KIND)] == [first[0].number]
    assert list(catalog.subscriptions.holders()) == [(first[0].number, BrokerId("south"))]


def test_merged_files_become_garbage_and_expired_sequences_are_recorded(catalog: Catalog) -> None:
    for version in (1, 2, 3):
        add(catalog, version)
    owner = dataset_owner(REPORTS)
    old = catalog.files.of(owner)[:2]
    assert catalog.files.replace(owner, old, [NewFile("merged.parquet", 20, 2000, 1, 2)], 300.0)
    assert not catalog.files.replace(owner, old, [], 300.0), "the old files are dropped already"
    assert [(stored.path, stored.generation) for stored in catalog.files.of(owner)] == [
        ("merged.parquet", 1),
        ("datasets/Reports/3.parquet", 0),
    ]
    execute(catalog, 1, 1, finished_s=10.0)
    execute(catalog, 2, 2, finished_s=500.0)
    assert catalog.executions.forgotten_sequence() == 0
    catalog.executions.expire(OF_KIND, 100.0)
    catalog.executions.expire(OF_KIND, 100.0)
    assert catalog.executions.forgotten_sequence() == 1 and catalog.executions.last_sequence() == 2
    dropped = sorted(catalog.files.garbage())
    assert dropped == ["datasets/Reports/1.parquet", "datasets/Reports/2.parquet"]
    catalog.files.forget_garbage(dropped[:1])
    assert catalog.files.garbage() == dropped[1:]


def two_executions(catalog: Catalog, upto: int) -> list[NewExecution]:
    """Executions of two channels that read the same version. Only that of OfKind has results."""
    if not any(stored.channel.name == "Quiet" for stored in catalog.channels.all()):
        channel = replace(catalog.channels.all()[0].channel, name=ChannelName("Quiet"))
        catalog.channels.create(channel, 3, {REPORTS: upto - 1})
    owners = [results_owner("OfKind", 2), results_owner("Quiet", 3)]
    intents = catalog.writes.begin_many(owners, 0.0)
    path = catalog_path(f"results/OfKind-2/{intents[0]}-{upto}.arrow")
    file = NewFile(path, 5, 50, upto, upto, content=b"rows of %d" % upto)
    made = [("OfKind", 2, 5, [file]), ("Quiet", 3, 0, [])]
    return [
        NewExecution(
            StoredExecution(0, ChannelName(name), epoch, upto, {REPORTS: (upto - 1, upto)}, results, 50, 1.0, 2.0),
            upto if results else 0,
            files,
            intent,
            tried=7,
        )
        for (name, epoch, results, files), intent in zip(made, intents, strict=True)
    ]


def test_executions_of_several_channels_are_committed_together(catalog: Catalog) -> None:
    add(catalog, 1)
    add(catalog, 2)
    first = catalog.executions.commit_together(two_executions(catalog, 1), 100.0)
    second = catalog.executions.commit_together(two_executions(catalog, 2), 100.0)
    assert [each and (each.channel, each.sequence) for each in (*first, *second)] == [
        ("OfKind", 1),
        None,
        ("OfKind", 2),
        None,
    ]
    assert catalog.executions.page() == [first[0], second[0]]
    stored = {each.channel.name: (each.execution, each.positions, each.tried) for each in catalog.channels.all()}
    assert stored == {"OfKind": (2, {REPORTS: 2}, 7), "Quiet": (0, {REPORTS: 2}, 7)}
    assert catalog.writes.open() == {}
    files = catalog.files.of(results_owner("OfKind", 2))
    contents = catalog.files.contents([each.path for each in files])
    assert sorted(contents.values()) == [b"rows of 1", b"rows of 2"]
    assert catalog.files.replace(results_owner("OfKind", 2), files, [], 300.0)
    assert len(catalog.files.contents(list(contents))) == 2, "a reader may still need the dropped files"
    catalog.files.forget_garbage(list(contents))
    assert catalog.files.contents(list(contents)) == {}


@pytest.mark.parametrize("fault", ["position", "intent"])
def test_joint_commit_stores_nothing_if_one_channel_fails(catalog: Catalog, fault: str) -> None:
    add(catalog, 1)
    new = two_executions(catalog, 1)
    if fault == "position":
        catalog.channels.advance(ChannelName("Quiet"), {REPORTS: (0, 1)})
    else:
        catalog.writes.end(new[1].write)
    with pytest.raises(TocsinError, match="it ran twice" if fault == "position" else "another process"):
        catalog.executions.commit_together(new, 100.0)
    assert catalog.executions.page() == [] and catalog.files.of(results_owner("OfKind", 2)) == []
    assert catalog.channels.get(OF_KIND).positions == {REPORTS: 0}
    assert catalog.files.contents([file.path for file in new[0].files]) == {}


def test_expiring_executions_reads_only_what_it_deletes(catalog: Catalog) -> None:
    """Upkeep expires the executions of every channel every few seconds: it must not read all that are kept."""
    if catalog._database._engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL chooses a plan by the size of the table")
    statements: list[str] = []
    sa.event.listen(
        catalog._database._engine,
        "before_cursor_execute",
        lambda _connection, cursor, statement, parameters, *_: statements.append(
            _plan_of(cursor, statement, parameters)
        ),
    )
    for number in (1, 2):
        add(catalog, number)
        execute(catalog, number, number, finished_s=10.0)
    statements.clear()
    catalog.executions.expire(OF_KIND, 100.0)
    assert len(catalog.executions.page()) == 0
    plans = [plan for plan in statements if "executions" in plan]
    assert plans and not any("SCAN executions" in plan for plan in plans[:-1]), plans


def _plan_of(cursor: Any, statement: str, parameters: Any) -> str:
    if not statement.startswith(("SELECT", "DELETE")):
        return ""
    cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
    return "; ".join(row[-1] for row in cursor.fetchall())


def test_commit_whose_answer_was_lost_is_recognised(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    write = catalog._database.write

    @contextmanager
    def answer_lost() -> Iterator[Connection]:
        with write() as connection:
            yield connection
        raise OperationalError("COMMIT", {}, OSError("the connection is lost"))

    monkeypatch.setattr(catalog._database, "write", answer_lost)
    add(catalog, 1)
    add(catalog, 2)
    assert execute(catalog, 1, 1) == 1 and execute(catalog, 2, 2, results=0) is None
    monkeypatch.undo()

    @contextmanager
    def never_committed() -> Iterator[Connection]:
        with write() as connection:
            yield connection
            raise OperationalError("COMMIT", {}, OSError("the connection is lost"))

    monkeypatch.setattr(catalog._database, "write", never_committed)
    with pytest.raises(OperationalError):
        add(catalog, 3)
    with pytest.raises(OperationalError):
        execute(catalog, 2, 3)
    monkeypatch.undo()
    add(catalog, 3)
    sequence = execute(catalog, 2, 3)
    assert sequence is not None and [stored.sequence for stored in catalog.executions.page()] == [1, sequence]
