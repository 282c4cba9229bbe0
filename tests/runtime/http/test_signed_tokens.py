"""The data cluster accepts tokens that the coordinator signed, within their scopes.

With a token of its own the coordinator releases the subscriptions of a forgotten broker at the data cluster.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.cluster.server.conftest import APPLICATION, RunningServer, StartServer
from tocsin.coordinator.events import BrokerReleased
from tocsin.model.ids import BrokerId
from tocsin.runtime.coordinator.cluster import ClusterReleases
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.http.credentials import Signer

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.generate())


@pytest.fixture(scope="module")
def trusting(
    start_server: StartServer, signer: Signer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_text(json.dumps(signer.jwks()))
    running = start_server(keys=str(keys))
    applied = running.admin.post("/v1/applications", json={"text": APPLICATION})
    assert applied.status_code == 200, applied.text
    yield running


def signed(signer: Signer, subject: str, *scopes: str, lifetime_s: float = 60, audience: str | None = None) -> str:
    return signer.sign(
        subject, scopes, now_s=time.time(), identity=secrets.token_hex(4), lifetime_s=lifetime_s, audience=audience
    )


def test_signed_token_allows_what_its_scopes_name(trusting: RunningServer, signer: Signer) -> None:
    admin = trusting.client(signed(signer, "root", "admin"))
    assert admin.get("/v1/tokens").status_code == 200
    reader = trusting.client(signed(signer, "eve", "read"))
    assert reader.get("/v1/channels").status_code == 200 and reader.get("/v1/tokens").status_code == 403
    publisher = trusting.client(signed(signer, "meter", "publish:Reports"))
    record = {"report_id": "r1", "kind": "fire", "severity": 1, "seen_at": "2026-11-15T18:00:00Z"}
    assert publisher.post("/v1/datasets/Reports/records", json=[record]).status_code in (200, 202)
    assert publisher.post("/v1/datasets/Places/records", json=[]).status_code == 403
    assert trusting.admin.get("/v1/channels").status_code == 200, "tokens of the catalog stay valid"


def test_subscriber_acts_as_a_broker_named_after_it(trusting: RunningServer, signer: Signer) -> None:
    ada, bob = (trusting.client(signed(signer, name, "subscribe")) for name in ("ada", "bob"))
    request = {"channel": "ReportsOfKind", "parameters": {"kind": "flood"}}
    [subscription] = ada.post("/v1/subscriptions", json=request).json()
    # Another token of the same subscriber is the same broker; another subscriber is not.
    again = trusting.client(signed(signer, "ada", "subscribe"))
    assert again.get(f"/v1/subscriptions/{subscription['id']}").json()["brokers"] == ["direct-user-ada"]
    assert bob.get(f"/v1/subscriptions/{subscription['id']}").status_code == 404
    assert bob.get("/v1/subscriptions", params={"broker": "direct-user-ada"}).status_code == 403


def test_forged_expired_and_hand_over_tokens_are_refused(trusting: RunningServer, signer: Signer) -> None:
    stranger = Signer(Ed25519PrivateKey.generate())
    for token in (
        signed(stranger, "root", "admin"),
        signed(signer, "root", "admin", lifetime_s=-10),
        signed(signer, "root", "admin", audience="b1"),
    ):
        assert trusting.client(token).get("/v1/channels").status_code == 401


def test_coordinator_releases_subscriptions_of_a_forgotten_broker(
    trusting: RunningServer, signer: Signer, tmp_path: Path
) -> None:
    kinds = [{"kind": f"k{number}"} for number in range(25)]
    for broker in ("dead-1", "alive-1"):
        client = trusting.client(signed(signer, broker, f"broker:{broker}"))
        body = {"channel": "ReportsOfKind", "parameters": kinds[: 25 if broker == "dead-1" else 5], "broker": broker}
        assert client.post("/v1/subscriptions", json=body).status_code == 200
    released: list[BrokerReleased] = []

    async def scenario() -> None:
        releases = ClusterReleases(CoordinatorSettings(state=str(tmp_path), cluster=trusting.url), signer)
        finished = asyncio.Event()

        def record(event: BrokerReleased) -> None:
            released.append(event)
            finished.set()

        releases.done = record
        releases.release(BrokerId("dead-1"))
        async with asyncio.timeout(30):
            await finished.wait()
        await releases.stop()

    asyncio.run(scenario())
    assert released == [BrokerReleased(BrokerId("dead-1"))]

    def count(broker: str) -> int:
        return len(trusting.admin.get("/v1/subscriptions", params={"broker": broker}).json()["subscriptions"])

    assert (count("dead-1"), count("alive-1")) == (0, 5)
