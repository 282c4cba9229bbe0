"""Tokens of an external issuer (OpenID Connect): a local issuer with keys made here, a real broker and coordinator."""

from __future__ import annotations

import asyncio
import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.runtime.broker.running_broker import broker_with_emulated_cluster
from tests.runtime.coordinator.harness import coordinator
from tocsin.runtime.broker.settings import BrokerSettings
from tocsin.runtime.http.settings import load_settings
from tocsin.wire.errors import TocsinError

ISSUER, AUDIENCE = "https://id.example", "tocsin"
SECRET = b"a secret that the issuer publishes by mistake"


class Issuer:
    """An identity provider: an RSA key, an EC key and a JWK set over HTTP."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {
            "rsa": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
        }
        public = {
            "rsa": RSAAlgorithm.to_jwk(self.keys["rsa"].public_key(), as_dict=True),
            "ec": ECAlgorithm.to_jwk(self.keys["ec"].public_key(), as_dict=True),
        }
        document = {"keys": [jwk | {"kid": name, "use": "sig"} for name, jwk in public.items()]}
        document["keys"].append({"kty": "oct", "kid": "hmac", "k": base64.urlsafe_b64encode(SECRET).decode()})
        body = json.dumps(document).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.settings: dict[str, Any] = {"oidc_keys": self.url, "oidc_issuer": ISSUER, "oidc_audience": AUDIENCE}

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def token(self, user: str = "ann", key: str = "rsa", **changed: Any) -> str:
        now_s = int(time.time())
        body = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": now_s + 600, "iat": now_s, "scope": "admin"}
        body = {name: value for name, value in (body | changed).items() if value is not None}
        algorithm = "RS256" if key == "rsa" else "ES256"
        return jwt.encode(body, self.keys[key], algorithm=algorithm, headers={"kid": key})


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    running = Issuer()
    yield running
    running.stop()


def test_broker_accepts_users_of_the_external_issuer(tmp_path: Path, issuer: Issuer) -> None:
    now_s = int(time.time())
    body = {"iss": ISSUER, "aud": AUDIENCE, "sub": "eve", "exp": now_s + 60}
    confused = jwt.encode(body, SECRET, "HS256", {"kid": "hmac"})
    unsigned = jwt.encode(body, "", "none", {"kid": "rsa"})
    refused = {
        "another issuer": issuer.token(iss="https://other.example"),
        "another audience": issuer.token(aud="billing"),
        "no audience": issuer.token(aud=None),
        "no expiry": issuer.token(exp=None),
        "expired": issuer.token(exp=now_s - 60),
        "not valid yet": issuer.token(nbf=now_s + 600),
        "no user": issuer.token(sub=None),
        "a user that is no name": issuer.token(sub="ann/../bob"),
        "a user without a name": issuer.token(sub=""),
        "a name that strangers may register": issuer.token(sub="guest-1"),
        "a shared secret": confused,
        "no signature": unsigned,
    }

    async def scenario() -> None:
        async with broker_with_emulated_cluster(tmp_path, **issuer.settings) as (broker, _):
            for key in ("rsa", "ec"):
                async with broker.connection() as subscriber:
                    answer = await subscriber.ask("login", token=issuer.token(f"user-{key}", key))
                    assert (answer["type"], answer["subscriber"]) == ("logged_in", f"user-{key}")
            async with httpx.AsyncClient(base_url=broker.url) as client:
                for reason, text in refused.items():
                    reply = await client.get("/v1/ping", headers={"Authorization": f"Bearer {text}"})
                    assert reply.status_code == 401, reason

    asyncio.run(scenario())


def test_coordinator_gives_a_session_to_a_user_of_the_issuer(tmp_path: Path, issuer: Issuer) -> None:
    async def scenario() -> None:
        options = issuer.settings | {"oidc_user_claim": "preferred_username", "oidc_scopes": "subscribe:Alerts*"}
        async with coordinator(tmp_path, **options) as running:
            text = issuer.token("00u1", preferred_username="ann")
            client = running.client(text)
            registered = await client.post("/v1/users", json={"user": "ann"})
            assert registered.status_code in (200, 201), registered.text
            assert registered.json()["expires_s"] <= jwt.decode(text, options={"verify_signature": False})["exp"]
            claims = await running.server.context.claims(registered.json()["token"])
            assert claims is not None and set(claims.scopes) == {"subscribe:Alerts*"}
            assert (await client.post("/v1/users", json={"user": "bob"})).status_code == 403, "not another user"
            assert (await client.get("/v1/brokers")).status_code == 403, "the issuer's scope admin is not Tocsin's"
            await running.admin.post("/v1/revocations", json={"users": ["ann"]})
            assert (await client.get("/v1/users/ann")).status_code == 401, "revocations of users count"

    asyncio.run(scenario())


def test_issuer_and_audience_must_be_set(issuer: Issuer) -> None:
    for missing in ("oidc_issuer", "oidc_audience"):
        given = {name: value for name, value in issuer.settings.items() if name != missing}
        with pytest.raises(TocsinError, match="oidc_keys needs"):
            load_settings(BrokerSettings, {"keys": __file__, **given}, {})
