"""`tocsin topic` against a running network, and what it says of bad input."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.end_to_end.topic_network import TopicNetwork, topic_network
from tocsin.cli.commands.topic import definition_of, persistence_of
from tocsin.cli.main import make_app
from tocsin.model.ids import TopicName
from tocsin.model.topic import TopicDefinition
from tocsin.model.topic_persistence import Persistence


def run(network: TopicNetwork, *arguments: str, text: str | None = None) -> tuple[int, list[Any]]:
    """(exit code, lines of JSON)."""
    options = ["--json", "--url", network.stack.coordinator_url, "--token", network.token]
    result = CliRunner().invoke(make_app(), ["topic", *arguments, *options], input=text)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_options_make_a_topic_persistent() -> None:
    assert persistence_of(False, None, None, None) is None
    for clause, kept in (
        (persistence_of(True, None, None, None), Persistence()),
        (persistence_of(False, 3, None, None), Persistence(3, 2)),
        (persistence_of(False, 2, 2, "5 MB, 1 DAYS"), Persistence(2, 2, 5 << 20, 86_400.0)),
    ):
        assert definition_of("orders", None, clause) == TopicDefinition(TopicName("orders"), None, kept)
    assert definition_of("orders", None, persistence_of(False, 2, 3, None)) == (
        "QUORUM 3: expected 1 to 2, the number of replicas"
    )
    assert isinstance(definition_of("CREATE TOPIC orders;", None, "PERSISTENT"), str)


def test_options_state_the_delay_and_the_protected_rate() -> None:
    expected = TopicDefinition(TopicName("alarms"), delay_s=1.0, protected_per_s=5.0)
    assert definition_of("alarms", None, delay="1 S", protected="5 PER SECOND") == expected
    assert isinstance(definition_of("alarms", None, protected="5"), str)
    assert isinstance(definition_of("CREATE TOPIC alarms;", None, delay="1 S"), str)


@pytest.mark.parametrize(
    ("text", "within"),
    [("swarm/3", "40 MS"), ("CREATE TOPIC swarm/3 WITHIN 40 MS;", None), (" create topic swarm/3 within 40 ms", None)],
)
def test_name_with_bound_and_statement_mean_the_same(text: str, within: str | None) -> None:
    assert definition_of(text, within) == TopicDefinition(TopicName("swarm/3"), 0.04)


@pytest.mark.parametrize(("text", "within"), [("a/+", None), ("a", "soon"), ("CREATE TOPIC a", "1 S"), ("a; x", None)])
def test_bad_definitions_have_a_reason(text: str, within: str | None) -> None:
    assert isinstance(definition_of(text, within), str)


def test_commands_create_use_move_and_delete_a_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with topic_network(tmp_path, brokers=2) as network:
            options = ("--within", "40 MS", "--delay", "1 S")
            code, [created] = await asyncio.to_thread(run, network, "create", "swarm/3", *options)
            assert (code, created["topic"], created["within_s"], created["delay_s"]) == (0, "swarm/3", 0.04, 1.0)
            subscribed = asyncio.create_task(asyncio.to_thread(run, network, "subscribe", "swarm/#", "--count", "3"))
            async with network.client() as client:
                while not subscribed.done():  # the command starts to receive at a time of its own
                    await client.publish("swarm/3", b"early")
                    await asyncio.sleep(0.1)
            code, lines = await subscribed
            assert code == 0
            assert [(line["topic"], line["data"]) for line in lines] == [("swarm/3", "early")] * 3
            assert await asyncio.to_thread(run, network, "publish", "swarm/3", "hello") == (0, [{"published": 1}])
            piped = await asyncio.to_thread(run, network, "publish", "swarm/3", text="one\ntwo\n")
            assert piped == (0, [{"published": 2}])
            home = (await network.until("swarm/3", lambda entry: entry["home"] is not None))["home"]
            target = next(name for name in network.stack.brokers if name != home)
            assert await asyncio.to_thread(run, network, "move", "swarm/3", target) == (0, [{"moving": True}])
            await network.until("swarm/3", lambda entry: entry["home"] == target)
            code, [listed] = await asyncio.to_thread(run, network, "list")
            assert [(entry["topic"], entry["home"]) for entry in listed["topics"]] == [("swarm/3", target)]
            assert await asyncio.to_thread(run, network, "delete", "swarm/3") == (0, [{"deleted": True}])
            code, [error] = await asyncio.to_thread(run, network, "delete", "swarm/3")
            assert (code, error["error"]["code"]) == (1, "unknown_topic")

    asyncio.run(scenario())
