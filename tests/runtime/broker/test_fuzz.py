"""Generated requests, valid and invalid by the OpenAPI document, never get a 5xx answer from a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from schemathesis import GenerationMode

from tests.runtime.broker.running_broker import broker_with_emulated_cluster, token
from tests.runtime.http.fuzzing import MODES, operations, told_to_wait, try_all


# The server under test runs beside the strategies, and its libraries use the global random generator.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("mode", MODES, ids=["fitting", "not fitting"])
def test_no_request_gets_a_server_error(tmp_path: Path, mode: GenerationMode) -> None:
    def send_requests(url: str) -> None:
        headers = {"Authorization": f"Bearer {token('ann', 'subscribe', 'read')}"}
        tested = operations(url, headers, ["/v1/stream"])
        paths = {operation.path for operation in tested}
        assert {"/v1/webhook", "/v1/subscriptions", "/v1/me/datasets/{name}", "/metrics"} <= paths
        assert try_all(url, headers, mode, tested, told_to_wait) >= 20

    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, webhooks_private=True) as (broker, _):
            await asyncio.to_thread(send_requests, broker.url)
            async with broker.session("ann") as ann:
                assert (await ann.ask("ping"))["type"] == "pong"

    asyncio.run(scenario())
