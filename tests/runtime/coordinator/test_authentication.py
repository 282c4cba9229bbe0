"""Requests and links need a token that the coordinator signed, with the right scope."""

from __future__ import annotations

import asyncio
import re
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx
import msgspec
import pytest
import websockets
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.runtime.coordinator.harness import FakeBroker, RunningCoordinator, coordinator
from tocsin.model.ids import BrokerId
from tocsin.runtime.coordinator.routes import make_routes
from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.trusted_keys import TrustedKeys
from tocsin.wire.link import Heartbeat, Register

OPEN = {"/v1/keys", "/v1/openapi.json"}


def protected_routes(running: RunningCoordinator) -> list[tuple[str, str]]:
    routes = []
    for template, methods in make_routes(running.server.context).openapi()["paths"].items():
        path = re.sub(r"\{\w+\}", "example", template)
        routes += [(method.upper(), path) for method in methods if path.startswith("/v1") and path not in OPEN]
    assert len(routes) >= 14, routes
    return routes


def body_for(path: str) -> dict[str, object]:
    known: dict[str, dict[str, object]] = {
        "/v1/plans": {"policy": "drain"},
        "/v1/migrations": {"subscriber": "x", "target": "y"},
        "/v1/tokens": {"subject": "x", "scopes": ["read"]},
        "/v1/brokers/example/drain": {"on": True},
    }
    return known.get(path, {})


def test_every_route_requires_a_valid_token_and_a_scope(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            forged = Signer(Ed25519PrivateKey.generate()).sign(
                "ada", ["admin"], now_s=running.server.process.now_s(), identity="x", lifetime_s=60
            )
            expired = await running.token_for("admin", days=1e-9)
            running.server.process._wall_s += 10
            handed_over = running.server.context.signer.sign(
                "ada", ["admin"], now_s=running.server.process.now_s(), identity="x", lifetime_s=60, audience="b1"
            )
            for token in (None, "x", "tocsin_" + "x" * 43, forged, expired, handed_over):
                client = running.client(token)
                for method, path in protected_routes(running):
                    answer = await client.request(method, path, json=body_for(path))
                    assert answer.status_code == 401, (method, path, answer.text)
                    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            other = running.client(await running.token_for("publish:SomethingElse"))
            for method, path in protected_routes(running):
                answer = await other.request(method, path, json=body_for(path))
                assert answer.status_code == 403, (method, path, answer.text)

    asyncio.run(scenario())


def test_user_can_read_and_change_only_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            ada, bob = await running.user("ada"), await running.user("bob")
            assert (await ada.get("/v1/users/ada")).status_code == 200
            for client, name in ((ada, "bob"), (bob, "ada")):
                assert (await client.get(f"/v1/users/{name}")).status_code == 403
                assert (await client.post(f"/v1/users/{name}/broker", json={})).status_code == 403
                assert (await client.delete(f"/v1/users/{name}")).status_code == 403
            for path in ("/v1/status", "/v1/brokers", "/v1/migrations", "/v1/settings"):
                assert (await ada.get(path)).status_code == 403
            # A user's token does not open a broker's link.
            with pytest.raises(websockets.InvalidStatus, match="403"):
                await FakeBroker(running, "ada").connect(
                    (await ada.post("/v1/users", json={"user": "ada"})).json()["token"]
                )
            assert (await ada.delete("/v1/users/ada")).status_code == 200
            assert (await ada.get("/v1/users/ada")).status_code == 401, "the tokens of a deleted user end"
            assert (await running.admin.get("/v1/users/ada")).status_code == 404
            assert (await running.admin.post("/v1/users/ada/broker", json={})).status_code == 404

    asyncio.run(scenario())


def test_name_in_use_is_refused_to_other_callers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            ada = await running.user("ada")
            registrar = running.client(await running.token_for("register"))
            assert (await registrar.post("/v1/users", json={"user": "ada"})).status_code == 409
            assert (await registrar.post("/v1/users", json={"user": "eve"})).status_code == 201
            assert (await registrar.post("/v1/users", json={})).status_code == 201
            assert (await registrar.get("/v1/users/eve")).status_code == 403
            renewed = await ada.post("/v1/users", json={"user": "ada"})
            assert renewed.status_code == 200
            assert (await running.client(renewed.json()["token"]).get("/v1/users/ada")).status_code == 200
            assert (await ada.post("/v1/users", json={"user": "mallory"})).status_code == 403
            assert (await running.client(None).post("/v1/users", json={})).status_code == 401
            # Of many concurrent requests for one name, one succeeds.
            answers = await asyncio.gather(*(registrar.post("/v1/users", json={"user": "zoe"}) for _ in range(8)))
            assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7

    asyncio.run(scenario())


def test_open_registration_needs_no_token_but_refuses_names_in_use(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path, open_registration=True) as running:
            anonymous = running.client(None)
            created = await anonymous.post("/v1/users", json={"user": "guest-ada"})
            assert created.status_code == 201
            assert (await anonymous.post("/v1/users", json={"user": "guest-ada"})).status_code == 409
            assert (await anonymous.get("/v1/users/guest-ada")).status_code == 401
            assert (await running.client(created.json()["token"]).get("/v1/users/guest-ada")).status_code == 200

    asyncio.run(scenario())


def test_broker_token_opens_only_its_own_link(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            token = await running.token_for("broker:b1")
            first = await FakeBroker(running, "b1").connect(token)
            with pytest.raises(websockets.InvalidStatus, match="403"):
                await FakeBroker(running, "b2").connect(token)
            with pytest.raises(websockets.InvalidStatus, match="401"):
                await FakeBroker(running, "b1").connect("unknown")
            # A link refuses registration under another name, and messages before registration.
            second = await FakeBroker(running, "b2").connect(await running.token_for("broker:*"), register=False)
            await second.send(Register(first.id, "x", "ws://evil"))
            assert "this link is for b2" in (await second.wait_closed())[1]
            third = await FakeBroker(running, "b3").connect(register=False, beat=False)
            await third.send(Heartbeat(0, 0, 0))
            assert "register first" in (await third.wait_closed())[1]
            assert (await running.admin.get("/v1/brokers/b1")).json()["address"] == "ws://b1"
            for broker in (first, second, third):
                await broker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"type": "unknown"}',
        '{"type": "heartbeat"}',
        '{"type": "changed", "number": "1"}',
        "[" * 50_000,
        '{"type":"load","in_bytes_per_s":1e999,"out_bytes_per_s":1,"rates":{}}',
    ],
)
def test_undecodable_message_closes_only_the_link_of_its_broker(tmp_path: Path, frame: str) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            sound = await FakeBroker(running, "b1").connect()
            faulty = await FakeBroker(running, "b2").connect()
            await faulty.send_text(frame)
            assert "not understood" in (await faulty.wait_closed())[1]
            await running.until("/v1/brokers/b2", lambda answer: answer["state"] == "suspect")
            assert (await running.admin.get("/v1/brokers/b1")).json()["state"] == "alive"
            assert sound.closed is None
            for broker in (sound, faulty):
                await broker.stop()

    asyncio.run(scenario())


def test_health_needs_no_token_and_all_errors_have_one_form(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinator(tmp_path) as running:
            anonymous = running.client(None)
            assert (await anonymous.get("/healthz")).json() == {"alive": True}
            assert (await anonymous.get("/readyz")).json() == {"ready": True, "reasons": []}
            assert (await anonymous.get("/v1/keys")).json()["keys"][0]["kty"] == "OKP"
            described = (await running.admin.get("/v1/openapi.json")).json()
            assert described["openapi"].startswith("3.1") and "/v1/users/{user}/broker" in described["paths"]
            for method, path, status in (
                ("GET", "/v1/nowhere", 404),
                ("GET", "/nowhere", 404),
                ("PUT", "/v1/brokers", 405),
                ("GET", "/v1/brokers/unknown", 404),
                ("GET", "/v1/users/unknown", 404),
                ("DELETE", "/v1/brokers/unknown", 404),
            ):
                answer = await running.admin.request(method, path)
                assert answer.status_code == status and set(answer.json()["error"]) == {"code", "message"}

    asyncio.run(scenario())


def make_certificate(folder: Path) -> tuple[str, str]:
    """Paths of a self-signed certificate for this machine and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(paths[0]), str(paths[1])


def test_requests_links_and_keys_use_tls_when_a_certificate_is_set(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    trust = ssl.create_default_context(cafile=cert)

    async def scenario() -> None:
        async with coordinator(tmp_path / "state", tls_cert=cert, tls_key=key) as running:
            assert running.url.startswith("https://")
            headers = {"Authorization": f"Bearer {running.token}"}
            async with httpx.AsyncClient(base_url=running.url, headers=headers, verify=trust) as client:
                assert (await client.get("/v1/status")).status_code == 200
            with pytest.raises(httpx.ConnectError, match="self-signed"):
                await running.admin.get("/healthz")
            address = f"{running.url.replace('https', 'wss', 1)}/v1/brokers/b1/link"
            async with websockets.connect(address, additional_headers=headers, ssl=trust) as link:
                await link.send(msgspec.json.encode(Register(BrokerId("b1"), "i", "wss://b1")).decode())
                assert b'"registered"' in await link.recv(decode=False)
            keys = TrustedKeys(f"{running.url}/v1/keys", ca=cert)
            await keys.start()
            assert keys.ready and keys.known_claims(running.token, running.server.process.now_s()) is not None
            untrusting = TrustedKeys(f"{running.url}/v1/keys")
            await untrusting.start()
            assert not untrusting.ready, "the certificate is not signed by a known authority"
            await untrusting.stop()

    asyncio.run(scenario())
