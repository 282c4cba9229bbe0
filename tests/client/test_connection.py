"""A connection to a broker: TLS is checked, closes have their reasons, nonsense ends it."""

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

from tocsin.client.connection import Codec, Connection, session_address
from tocsin.client.tls import Verify, context_for
from tocsin.wire import session as wire

Behaviour = Callable[[ServerConnection], Awaitable[None]]


def certificate(folder: Path) -> Path:
    """For this machine, signed by itself; the key is in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "broker.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(made.public_bytes(Encoding.PEM) + secret)
    return path


async def talk(behaviour: Behaviour, *, verify: Verify = True, pem: Path | None = None) -> list[str]:
    """What a connection tells its owner, until it is lost."""
    server_tls = None
    if pem is not None:
        server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server_tls.load_cert_chain(pem)
    told: list[str] = []
    over = asyncio.Event()

    def lost(reason: str) -> None:
        told.append(f"lost: {reason}")
        over.set()

    async def room() -> None:
        return

    async with serve(behaviour, "127.0.0.1", 0, ssl=server_tls, subprotocols=[wire.JSON]) as server:  # type: ignore[list-item]
        port, scheme = next(iter(server.sockets)).getsockname()[1], "ws" if pem is None else "wss"
        connection = Connection(
            f"{scheme}://127.0.0.1:{port}", Codec(wire.JSON), opened=lambda: told.append("opened"),
            received=lambda message: told.append(type(message).__name__), lost=lost, room=room, tls=context_for(verify),
        )  # fmt: skip
        async with asyncio.timeout(20):
            await over.wait()
        await connection.task
    return told


async def goodbye(socket: ServerConnection) -> None:
    await socket.send('{"type": "closing", "code": "draining", "message": "m", "reconnect": true}')
    await socket.close(*wire.CLOSE_CODES["draining"][:1], "draining")


def test_a_close_has_the_reason_its_code_stands_for() -> None:
    assert asyncio.run(talk(goodbye)) == ["opened", "Closing", "lost: draining"]


def test_what_is_not_of_this_protocol_ends_it() -> None:
    async def nonsense(socket: ServerConnection) -> None:
        await socket.send('{"type": "riddle"}')
        await socket.wait_closed()

    told = asyncio.run(talk(nonsense))
    assert told[0] == "opened" and "not a message of this protocol" in told[1]


def test_a_broker_nobody_vouches_for_is_not_talked_to(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    told = asyncio.run(talk(goodbye, pem=pem))
    assert len(told) == 1 and "CERTIFICATE_VERIFY_FAILED" in told[0]
    assert asyncio.run(talk(goodbye, pem=pem, verify=pem)) == ["opened", "Closing", "lost: draining"]


def test_a_broker_that_accepts_and_never_answers_is_not_waited_for_when_closing() -> None:
    async def scenario() -> None:
        hung_up = asyncio.Event()

        async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.set()
            while await reader.read(1 << 16):
                pass
            hung_up.set()
            writer.close()

        async def room() -> None:
            return

        asked = asyncio.Event()
        told: list[str] = []
        server = await asyncio.start_server(silence, "127.0.0.1", 0)
        async with server, asyncio.timeout(20):
            connection = Connection(
                f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", Codec(wire.JSON),
                opened=lambda: told.append("opened"), received=lambda message: told.append("received"),
                lost=told.append, room=room, tls=context_for(True),
            )  # fmt: skip
            await asked.wait()
            connection.close()
            await asyncio.wait([connection.task])
            await hung_up.wait()
        assert told == [], "after it was closed nothing more is heard of it"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "address", ["ws://h:1", "ws://h:1/", "http://h:1", "ws://h:1/v1/session"], ids=lambda text: str(text)
)
def test_an_address_leads_to_its_session(address: str) -> None:
    assert session_address(address) == "ws://h:1/v1/session"
