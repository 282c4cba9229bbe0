"""Endpoints of webhooks that do not want to be called, never finish their answers, or pretend to be others."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.runtime.broker.running_broker import broker_with_emulated_cluster, row, until
from tests.runtime.broker.test_rest import FIRE, rest
from tests.runtime.broker.test_webhooks import Receiver, verified
from tocsin.runtime.broker.webhook_addresses import is_public
from tocsin.runtime.broker.webhook_bulkheads import CALLS_EACH, QUICK_CALLS, Bulkheads, TooManySlowCalls
from tocsin.runtime.broker.webhook_calls import CallFailed, WebhookCaller

PUBLIC = ("93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "2a00:1450:4001::8a")
HIDDEN = {
    "loopback": "127.0.0.1",
    "private": "10.1.2.3",
    "carrier's": "100.64.0.1",
    "link-local": "169.254.169.254",
    "multicast": "224.0.0.1",
    "6to4 relay": "192.88.99.1",
    "reserved": "240.0.0.1",
    "loopback, version 6": "::1",
    "IPv4-compatible": "::127.0.0.1",
    "IPv4-compatible, public": "::8.8.8.8",
    "IPv4-mapped": "::ffff:10.0.0.1",
    "IPv4-translated": "::ffff:0:10.0.0.1",
    "NAT64": "64:ff9b::7f00:1",
    "NAT64, local": "64:ff9b:1::7f00:1",
    "6to4": "2002:7f00:1::1",
    "Teredo": "2001:0:7f00:1::1",
    "ISATAP": "2606:2800:220:1:0:5efe:127.0.0.1",
    "ISATAP, global": "2606:2800:220:1:200:5efe:10.0.0.1",
    "site-local": "fec0::1",
    "unique local": "fd00::1",
    "link-local, version 6": "fe80::1",
    "link-local with a scope": "fe80::1%eth0",
    "documentation": "2001:db8::1",
    "documentation, new": "3fff::1",
    "multicast, version 6": "ff02::1",
    "discard": "100::1",
    "segment routing": "5f00::1",
}


@pytest.mark.parametrize("address", HIDDEN.values(), ids=HIDDEN.keys())
def test_private_and_disguised_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_hosts_on_the_internet_are_public(address: str) -> None:
    assert is_public(address)


# -- consent -----------------------------------------------------------------------------------------------------------


def test_webhook_is_refused_until_its_owner_consents(tmp_path: Path) -> None:
    async def scenario() -> None:
        receiver = Receiver()
        async with (
            broker_with_emulated_cluster(tmp_path, webhooks_private=True, webhook_origin="city.example") as (
                broker,
                cluster,
            ),
            receiver.listening() as url,
            rest(broker) as ann,
        ):
            held = (await ann.post("/v1/subscriptions", json=FIRE)).json()["held"]
            for allowed in (None, "other.example"):
                receiver.allowed_origin = allowed
                answer = await ann.put("/v1/webhook", json={"url": url})
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), allowed
                assert (await ann.get("/v1/webhook")).status_code == 404
            cluster.execute("Reports", {held["subscription"]: [row(1)]})
            for allowed in ("city.example", "*"):
                receiver.allowed_origin = allowed
                created = await ann.put("/v1/webhook", json={"url": url})
                assert created.status_code == 200, allowed
            headers, body = receiver.handshakes[-1]
            assert headers["webhook-request-origin"] == "city.example"
            assert verified(created.json()["secret"], headers, body)
            await until(lambda: receiver.numbers == [1])

    asyncio.run(scenario())


def test_webhook_without_handshake_is_called_if_the_operator_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        receiver = Receiver()
        receiver.allowed_origin = None
        settings = {"webhooks_private": True, "webhook_handshake": False}
        async with (
            broker_with_emulated_cluster(tmp_path, **settings) as (broker, _),
            receiver.listening() as url,
            rest(broker) as ann,
        ):
            assert (await ann.put("/v1/webhook", json={"url": url})).status_code == 200
            assert receiver.handshakes == []

    asyncio.run(scenario())


# -- hostile answers ---------------------------------------------------------------------------------------------------

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def endpoint(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that answers every connection with `serve`; yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls, backlog=1024)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def everything_is_here(host: str, port: int) -> list[str]:
    """A name server that knows all names."""
    return ["127.0.0.1"]


@asynccontextmanager
async def calling(deadline_s: float = 20.0, tls: ssl.SSLContext | None = None) -> AsyncIterator[WebhookCaller]:
    caller = WebhookCaller(private=True, deadline_s=deadline_s, tls=tls, lookup=everything_is_here)
    try:
        yield caller
    finally:
        await caller.stop()


async def request_read(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send an answer whose next byte always comes in time and whose last byte never comes."""
    await request_read(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nX-Header: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.1)


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await request_read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def test_dripping_endpoint_is_given_up_at_the_deadline() -> None:
    async def scenario() -> None:
        async with endpoint(drip) as port, calling(deadline_s=0.5) as caller:
            started_s = time.monotonic()
            with pytest.raises(CallFailed, match="no complete answer"):
                await caller.call("POST", f"http://slow.example:{port}/", {}, b"{}")
            assert 0.5 <= time.monotonic() - started_s < 10

    asyncio.run(scenario())


def test_long_and_compressed_answers_stay_out_of_memory() -> None:
    """A body of 300 MB, compressed to 300 KB, counts as its status and is neither kept nor decompressed."""
    bomb = gzip.compress(bytes(300 << 20))
    written = 0

    async def explode(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await request_read(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:  # the body never ends either
            writer.write(b"%x\r\n" % len(bomb) + bomb + b"\r\n")
            await writer.drain()
            written += len(bomb)

    async def scenario() -> None:
        async with endpoint(explode) as port, calling() as caller:
            tracemalloc.start()
            try:
                answer = await caller.call("POST", f"http://bomb.example:{port}/", {}, b"{}")
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert answer.status == 200
            assert peak_bytes < 16 << 20
            assert written < 64 << 20

    asyncio.run(scenario())


def test_hundreds_of_dripping_endpoints_delay_no_other() -> None:
    async def scenario() -> None:
        async with endpoint(drip) as slow, endpoint(accept) as quick, calling() as caller:
            count = QUICK_CALLS + 50
            urls = [f"http://slow-{number}.example:{slow}/" for number in range(count)]
            dripping = [asyncio.create_task(caller.call("POST", url, {}, b"{}")) for url in urls]
            async with asyncio.timeout(15):  # less than one deadline
                answer = await caller.call("POST", f"http://good.example:{quick}/", {}, b"{}")
            assert answer.status == 200
            for task in dripping:
                task.cancel()
            await asyncio.gather(*dripping, return_exceptions=True)

    asyncio.run(scenario())


def test_one_endpoint_gets_few_calls_at_a_time() -> None:
    async def scenario() -> None:
        bulkheads, running, most = Bulkheads(), 0, 0

        async def call() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

        await asyncio.gather(*(bulkheads.run("a.example:443", call) for _ in range(50)))
        assert most == CALLS_EACH
        assert not bulkheads._endpoints

    asyncio.run(scenario())


def test_slow_call_fails_when_too_many_others_are_slow() -> None:
    async def scenario() -> None:
        bulkheads = Bulkheads(quick=2, slow=1, quick_s=0.01)
        ended = asyncio.Event()

        async def wait() -> str:
            await ended.wait()
            return "answered"

        first = asyncio.create_task(bulkheads.run("a.example:443", wait))
        while not bulkheads.is_slow("a.example:443"):
            await asyncio.sleep(0.001)
        with pytest.raises(TooManySlowCalls):
            await bulkheads.run("b.example:443", wait)

        async def answer_at_once() -> str:
            return "quick"

        assert await bulkheads.run("c.example:443", answer_at_once) == "quick"
        ended.set()
        assert await first == "answered"

    asyncio.run(scenario())


# -- certificates ------------------------------------------------------------------------------------------------------


def certificate_for(name: str, folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for a host name; return the paths of the certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    chain, private = folder / "cert.pem", folder / "key.pem"
    chain.write_bytes(certificate.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return chain, private


def test_connection_of_one_name_is_not_used_for_another(tmp_path: Path) -> None:
    """Two names at one address: an open connection to the first must not spare the second its certificate."""
    chain, private = certificate_for("honest.example", tmp_path)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(chain, private)
    connections = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await accept(reader, writer)

    async def scenario() -> None:
        trusting = ssl.create_default_context(cafile=str(chain))
        async with endpoint(count, serving) as port, calling(tls=trusting) as caller:
            for _ in range(2):
                assert (await caller.call("POST", f"https://honest.example:{port}/", {}, b"{}")).status == 200
            assert connections == 1  # the same name shares a connection
            with pytest.raises(CallFailed):
                await caller.call("POST", f"https://victim.example:{port}/", {}, b"{}")

    asyncio.run(scenario())
