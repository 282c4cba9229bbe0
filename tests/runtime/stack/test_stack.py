"""A network on one machine: addresses through relays, flags without values, and brokers that never become ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tocsin.runtime.stack import stack as module
from tocsin.runtime.stack.stack import SUBSCRIBERS, Stack, StackSettings
from tocsin.wire.errors import TocsinError


def test_broker_that_is_never_ready_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_READY_S", 0.2)
    stack = Stack(StackSettings(tmp_path, 1, free_ports=True))
    stack.brokers["broker-1"].announcement = {"address": "ws://127.0.0.1:9"}
    with pytest.raises(TocsinError, match=r"broker-1 was not ready after .* it does not answer"):
        asyncio.run(stack._wait_until_ready("broker-1"))


def test_every_connection_between_processes_uses_the_given_address(tmp_path: Path) -> None:
    links: dict[tuple[str, str], str] = {}

    def via(source: str, target: str, address: str) -> str:
        return links.setdefault((source, target), f"http://127.0.0.1:{len(links) + 1}")

    stack = Stack(StackSettings(tmp_path, 1, free_ports=True, via=via, broker={"webhooks-private": ""}))
    assert links.keys() == {
        ("cluster", "coordinator"),
        ("coordinator", "cluster"),
        ("broker-1", "cluster"),
        ("broker-1", "coordinator"),
        (SUBSCRIBERS, "broker-1"),
    }
    arguments = stack.brokers["broker-1"]._arguments
    assert arguments[arguments.index("--cluster") + 1] == links["broker-1", "cluster"]
    assert arguments[-1] == "--webhooks-private"
