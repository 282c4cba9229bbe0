"""Trusted keys come from a file or a server, are refreshed seldom, and survive an outage of their source."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tocsin.runtime.http.credentials import Signer
from tocsin.runtime.http.trusted_keys import REFRESH_S, TrustedKeys
from tocsin.wire.errors import TocsinError

NOW_S = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class KeyServer:
    """Answers with `body`, or 503 while it is None."""

    def __init__(self) -> None:
        self.body: bytes | None = None
        self.requests = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                self.send_response(200 if outer.body else 503)
                self.end_headers()
                self.wfile.write(outer.body or b"")

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/keys"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[KeyServer]:
    running = KeyServer()
    yield running
    running.stop()


def signer_and_token() -> tuple[Signer, str]:
    signer = Signer(Ed25519PrivateKey.generate())
    return signer, signer.sign("ada", ["read"], now_s=NOW_S, identity="t", lifetime_s=60)


def jwks(*signers: Signer) -> bytes:
    return json.dumps({"keys": [key for signer in signers for key in signer.jwks()["keys"]]}).encode()


def test_new_key_in_the_file_is_read_when_a_token_names_it(tmp_path: Path) -> None:
    (old, old_token), (new, new_token) = signer_and_token(), signer_and_token()
    file, clock = tmp_path / "keys.json", Clock()
    file.write_bytes(jwks(old))

    async def scenario() -> None:
        keys = TrustedKeys(str(file), monotonic_s=clock)
        await keys.start()
        assert keys.ready and keys.known_claims(old_token, NOW_S) is not None
        file.write_bytes(jwks(old, new))
        assert await keys.claims(new_token, NOW_S) is None, "the file was read a moment ago"
        clock.now_s += REFRESH_S
        assert await keys.claims(new_token, NOW_S) is not None
        assert await keys.claims(old_token, NOW_S) is not None

    asyncio.run(scenario())


def test_unknown_tokens_do_not_trigger_repeated_fetches(server: KeyServer) -> None:
    (ours, token), (_, foreign) = signer_and_token(), signer_and_token()
    server.body = jwks(ours)

    async def scenario() -> None:
        keys = TrustedKeys(server.url, monotonic_s=Clock())
        await keys.start()
        for _ in range(20):
            assert await keys.claims(foreign, NOW_S) is None
            assert await keys.claims("not.a.token", NOW_S) is None
            assert await keys.claims("nothing", NOW_S) is None
        assert server.requests == 1
        assert await keys.claims(token, NOW_S) is not None

    asyncio.run(scenario())


def test_process_started_before_its_coordinator_gets_the_keys_later(
    server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, token = signer_and_token()
    monkeypatch.setattr("tocsin.runtime.http.trusted_keys.retry_delay_s", lambda failures: 0.01)

    async def scenario() -> None:
        keys = TrustedKeys(server.url)
        await keys.start()
        assert not keys.ready and keys.known_claims(token, NOW_S) is None
        server.body = jwks(ours)
        async with asyncio.timeout(10):
            while keys.known_claims(token, NOW_S) is None:
                await asyncio.sleep(0.01)
        assert await keys.claims(token, NOW_S) is not None
        await keys.stop()

    asyncio.run(scenario())


def test_unknown_key_is_not_judged_while_the_source_is_unreachable(server: KeyServer) -> None:
    (ours, token), (_, foreign) = signer_and_token(), signer_and_token()

    async def scenario() -> None:
        clock = Clock()
        keys = TrustedKeys(server.url, monotonic_s=clock)
        await keys.start()
        assert await keys.claims(token, NOW_S) is None and not keys.can_judge(token)
        assert keys.can_judge("nothing") and keys.can_judge("tocsin_" + "x" * 43), "text that is no signed token"
        server.body = jwks(ours)
        clock.now_s += REFRESH_S
        assert await keys.claims(foreign, NOW_S) is None and keys.can_judge(foreign)
        server.body = b""
        clock.now_s += REFRESH_S
        assert await keys.claims(foreign, NOW_S) is None and not keys.can_judge(foreign)
        assert keys.can_judge(token), "its key is known"
        await keys.stop()

    asyncio.run(scenario())


def test_keys_stay_valid_while_their_source_fails_or_sends_nonsense(server: KeyServer) -> None:
    (ours, token), (_, foreign) = signer_and_token(), signer_and_token()
    server.body, clock = jwks(ours), Clock()

    async def scenario() -> None:
        keys = TrustedKeys(server.url, monotonic_s=clock)
        await keys.start()
        for body in (None, b"[]", b'{"keys": [5]}', b'{"keys": [{"kty": "OKP"}]}', b"x" * (1 << 17)):
            server.body, clock.now_s = body, clock.now_s + REFRESH_S
            assert await keys.claims(foreign, NOW_S) is None
            assert await keys.claims(token, NOW_S) is not None
        assert server.requests == 6

    asyncio.run(scenario())


def test_unencrypted_keys_of_another_machine_are_refused() -> None:
    with pytest.raises(TocsinError, match="use https"):
        TrustedKeys("http://192.0.2.1/v1/keys")
    TrustedKeys("http://192.0.2.1/v1/keys", insecure=True)
    with pytest.raises(TocsinError, match="https"):
        TrustedKeys("https://192.0.2.1/v1/keys,http://192.0.2.2/v1/keys")
    TrustedKeys("https://192.0.2.1/v1/keys,http://127.0.0.1:8570/v1/keys")
    TrustedKeys("https://192.0.2.1/v1/keys")
