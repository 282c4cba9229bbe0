"""TLS on the listener and on the link to the data cluster, with a self-signed certificate; and unsafe settings."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import connect

from tests.runtime.broker.running_broker import ConnectedSubscriber, row, running_broker, token
from tocsin.benchmarks.shared.data_cluster import EmulatedCluster
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.http.settings import load_settings
from tocsin.wire.errors import TocsinError


def make_certificate(folder: Path) -> tuple[str, str]:
    """Write a self-signed certificate for 127.0.0.1; return the paths of the certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tocsin test")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
    builder = builder.add_extension(address, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    chain, private = folder / "cert.pem", folder / "key.pem"
    chain.write_bytes(certificate.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(chain), str(private)


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
