"""A network with replicas: PostgreSQL of its own, and two of each server that know each other's addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests import postgresql
from tocsin.runtime.stack.postgresql import LocalPostgresql
from tocsin.runtime.stack.stack import Stack, StackSettings
from tocsin.runtime.stack.supervisor import Child

URL = "postgresql+psycopg://tocsin@/postgres?host=/somewhere"


def flags(child: Child) -> Mapping[str, str]:
    _, *words = child._arguments
    return {word: following for word, following in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


def test_each_process_knows_both_addresses_of_what_it_needs(tmp_path: Path) -> None:
    stack = Stack(StackSettings(tmp_path, 2, free_ports=True, replicas=URL))
    names = [child.name for child in stack.children]
    assert names == [
        "broker-1", "broker-2", "results-1", "results-2", "coordinator-2", "cluster-2", "coordinator", "cluster",
    ]  # fmt: skip
    for child in stack.brokers.values():
        assert flags(child)["--cluster"] == stack.cluster_url and flags(child)["--coordinator"] == stack.coordinator_url
        assert flags(child)["--results"].count("http://") == 2
    for child in (stack.cluster, stack.standbys["cluster-2"]):
        assert flags(child)["--catalog"] == URL and "--standby" in flags(child)
        assert flags(child)["--root"] == str(tmp_path), "the feed logs are in the shared root"
    first, second = flags(stack.coordinator), flags(stack.standbys["coordinator-2"])
    assert first["--store"] == second["--store"] == URL and first["--state"] != second["--state"]


def test_network_without_replicas_has_one_of_each(tmp_path: Path) -> None:
    stack = Stack(StackSettings(tmp_path, 1, free_ports=True))
    assert [child.name for child in stack.children] == ["broker-1", "coordinator", "cluster"]
    assert "," not in stack.cluster_url and "--standby" not in flags(stack.cluster)


def test_postgresql_keeps_its_data_over_a_restart_and_a_stop(tmp_path: Path) -> None:
    reason = postgresql.why_not()
    if reason is not None:
        pytest.skip(reason)
    database = LocalPostgresql(tmp_path)

    def run(statement: str) -> int:
        engine = sa.create_engine(database.url)
        with engine.begin() as connection:
            count = connection.execute(sa.text(statement)).rowcount
        engine.dispose()
        return count

    async def scenario() -> None:
        await database.start()
        try:
            run("CREATE TABLE notes (text VARCHAR(9))")
            run("INSERT INTO notes VALUES ('kept')")
            await database.restart()
            await database.stop()
            await database.start()
            assert run("DELETE FROM notes") == 1
        finally:
            await database.stop()
            database.delete()

    asyncio.run(scenario())
