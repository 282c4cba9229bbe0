"""The WebSocket to a broker: TLS verification, close reasons and invalid messages."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from websockets.asyncio.server import ServerConnection, serve

from tocsin.client.tls import Verify, context_for
from tocsin.client.websocket import BrokerSocket, Codec, session_address
from tocsin.wire import session as wire

Behaviour = Callable[[ServerConnection], Awaitable[None]]


def certificate(folder: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "broker.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(signed.public_bytes(Encoding.PEM) + secret)
    return path


async def observe(behaviour: Behaviour, *, verify: Verify = True, pem: Path | None = None) -> list[str]:
    """The callbacks of a connection until it is lost, as text."""
    server_tls = None
    if pem is not None:
        server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server_tls.load_cert_chain(pem)
    callbacks: list[str] = []
    ended = asyncio.Event()

    def lost(reason: str) -> None:
        callbacks.append(f"lost: {reason}")
        ended.set()

    async def wait_for_room() -> None:
        return

    async with serve(behaviour, "127.0.0.1", 0, ssl=server_tls, subprotocols=[wire.JSON]) as server:  # type: ignore[list-item]
        port, scheme = next(iter(server.sockets)).getsockname()[1], "ws" if pem is None else "wss"
        connection = BrokerSocket(
            f"{scheme}://127.0.0.1:{port}",
            Codec(wire.JSON),
            opened=lambda: callbacks.append("opened"),
            received=lambda message: callbacks.append(type(message).__name__),
            lost=lost,
            wait_for_room=wait_for_room,
            tls=context_for(verify),
        )
        async with asyncio.timeout(20):
            await ended.wait()
        await connection.task
    return callbacks


async def close_as_draining(socket: ServerConnection) -> None:
    await socket.send('{"type": "closing", "code": "draining", "message": "m", "reconnect": true}')
    await socket.close(*wire.CLOSE_CODES["draining"][:1], "draining")


def test_close_code_is_reported_as_its_reason() -> None:
    assert asyncio.run(observe(close_as_draining)) == ["opened", "Closing", "lost: draining"]


def test_invalid_message_ends_the_connection() -> None:
    async def send_invalid(socket: ServerConnection) -> None:
        await socket.send('{"type": "riddle"}')
        await socket.wait_closed()

    callbacks = asyncio.run(observe(send_invalid))
    assert callbacks[0] == "opened" and "not a message of this protocol" in callbacks[1]


def test_broker_with_untrusted_certificate_is_rejected(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    callbacks = asyncio.run(observe(close_as_draining, pem=pem))
    assert len(callbacks) == 1 and "CERTIFICATE_VERIFY_FAILED" in callbacks[0]
    assert asyncio.run(observe(close_as_draining, pem=pem, verify=pem)) == ["opened", "Closing", "lost: draining"]


def test_close_does_not_wait_for_broker_that_never_answers() -> None:
    async def scenario() -> None:
        closed = asyncio.Event()

        async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            while await reader.read(1 << 16):
                pass
            closed.set()
            writer.close()

        async def wait_for_room() -> None:
            return

        connected = asyncio.Event()
        callbacks: list[str] = []
        server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
        async with server, asyncio.timeout(20):
            connection = BrokerSocket(
                f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}",
                Codec(wire.JSON),
                opened=lambda: callbacks.append("opened"),
                received=lambda message: callbacks.append("received"),
                lost=callbacks.append,
                wait_for_room=wait_for_room,
                tls=context_for(True),
            )
            await connected.wait()
            connection.close()
            await asyncio.wait([connection.task])
            await closed.wait()
        assert callbacks == [], "no callback after close"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "address", ["ws://h:1", "ws://h:1/", "http://h:1", "ws://h:1/v1/session"], ids=lambda text: str(text)
)
def test_session_address_completes_a_broker_address(address: str) -> None:
    assert session_address(address) == "ws://h:1/v1/session"
