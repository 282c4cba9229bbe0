"""A network of topics whose brokers have MQTT ports, and the MQTT clients of other projects that connect to it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.end_to_end.topic_network import COORDINATOR, TopicNetwork, topic_network

PREFIXES = "game/,Topic,TopicA,~,test/"
TAKE_S = 40.0


class MqttNetwork:
    def __init__(self, topics: TopicNetwork) -> None:
        self.topics = topics
        self.token = topics.token

    def port(self, number: int = 1) -> int:
        """The MQTT port of a broker."""
        address = str(self.topics.stack.brokers[f"broker-{number}"].announcement["mqtt"])
        return int(address.rpartition(":")[2])

    def url(self, number: int = 1) -> str:
        return str(self.topics.stack.brokers[f"broker-{number}"].announcement["address"])

    async def mosquitto(self, command: str, *arguments: str, number: int = 1) -> asyncio.subprocess.Process:
        """Run `mosquitto_pub` or `mosquitto_sub`, or skip the test if they are not installed."""
        path, by_line = shutil.which(command), shutil.which("stdbuf")
        if path is None or by_line is None:
            pytest.skip(f"{command} or stdbuf is not installed: the Debian package mosquitto-clients has the former")
        login = ("-h", "127.0.0.1", "-p", str(self.port(number)), "-u", "ann", "-P", self.token)
        return await asyncio.create_subprocess_exec(
            by_line, "-oL", path, *login, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )


@asynccontextmanager
async def mqtt_network(folder: Path, brokers: int = 2, **flags: str) -> AsyncIterator[MqttNetwork]:
    """`flags` are further flags of the brokers."""
    coordinator = {**COORDINATOR, "topic-prefixes": PREFIXES, "topic-workflow": "tocsin"}
    async with topic_network(folder, brokers, coordinator=coordinator, broker={"mqtt-port": "0", **flags}) as topics:
        yield MqttNetwork(topics)


async def output_of(process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(TAKE_S):
        data, _ = await process.communicate()
    assert process.returncode == 0, data.decode()
    return data.decode()


async def until_line(process: asyncio.subprocess.Process, text: str) -> None:
    """Read the output up to a line that contains the text."""
    assert process.stdout is not None
    async with asyncio.timeout(TAKE_S):
        while text not in (line := (await process.stdout.readline()).decode()):
            assert line, f"the process ended without {text!r}"
