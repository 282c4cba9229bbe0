"""TLS on the listener and on the link to the data cluster, with a self-signed certificate; and unsafe settings."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.runtime.broker.running_broker import ConnectedSubscriber, row, running_broker, token
from tocsin.benchmarks.shared.certificate import make_certificate
from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.http.settings import load_settings
from tocsin.wire.errors import TocsinError


def test_sessions_and_fetches_work_over_tls_with_trusted_certificates(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)

    async def scenario() -> None:
        trusting = ssl.create_default_context(cafile=cert)
        async with (
            EmulatedCluster("Reports", tls=(cert, key)) as cluster,
            running_broker(tmp_path, cluster.url, tls_cert=cert, tls_key=key, ca=cert) as broker,
        ):
            assert broker.address.startswith("wss://")
            with pytest.raises(ssl.SSLCertVerificationError):
                async with connect(f"{broker.address}/v1/session"):
                    pass
            async with connect(f"{broker.address}/v1/session", ssl=trusting, compression=None) as socket:
                ann = ConnectedSubscriber(socket)
                assert (await ann.ask("login", token=token("ann")))["type"] == "logged_in"
                identity = (await ann.subscribe())["subscription"]
                cluster.execute("Reports", {identity: [row(1)]})
                assert await ann.results(1) == [1]
            async with httpx.AsyncClient(base_url=broker.url, verify=trusting) as client:
                assert (await client.get("/healthz")).status_code == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cluster": "http://cluster.example:8571"}, "use https"),
        ({"coordinator": "http://192.0.2.7"}, "use https"),
        ({"cluster": "cluster.example"}, "expected an address"),
        ({"keys": None}, "could not verify any token"),
        ({"host": "0.0.0.0"}, "other machines"),
        ({"slow": "panic"}, "expected drop or disconnect"),
        ({"id": "no spaces"}, "id: expected 1 to 128"),
        ({"half_open": 0}, "at least 1"),
    ],
)
def test_unsafe_or_invalid_settings_are_refused(given: dict[str, object], expected: str) -> None:
    with pytest.raises(TocsinError, match=expected):
        load_settings(BrokerSettings, {"keys": "keys.json"} | given, {})
