"""A PostgreSQL server for a network on one machine: made, started and stopped with the network.

It listens on a socket in a folder that only its user may enter, so it needs no password. PostgreSQL refuses to run as
root; started by root it runs as the user `postgres`, and its files are then outside the data root.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pwd
import shutil
import tempfile
from pathlib import Path

from tocsin.runtime.stack.supervisor import free_ports
from tocsin.wire.errors import Code, TocsinError

_USER = "postgres"
_INSTALLED = Path("/usr/lib/postgresql")
_OF_ROOT = Path("/var/lib/tocsin")
_CONNECTIONS = 100


class LocalPostgresql:
    def __init__(self, root: Path, *, relayed: bool = False) -> None:
        """`relayed`: listen on a port of the loopback address, for relays in front of it. For tests only, because any
        user of the machine could connect."""
        self._programs = _programs()
        self._as_root = os.geteuid() == 0
        identity = hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:12]
        self._home = _OF_ROOT / f"postgresql-{identity}" if self._as_root else root.absolute() / "postgresql"
        self._sockets = Path(tempfile.gettempdir()) / f"tocsin-postgresql-{identity}"
        self.port = free_ports(1)[0] if relayed else 5432
        self._relayed = relayed

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database."""
        if self._relayed:
            return self.url_at(self.port)
        return f"postgresql+psycopg://tocsin@/postgres?host={self._sockets}&port={self.port}"

    def url_at(self, port: int) -> str:
        return f"postgresql+psycopg://127.0.0.1:{port}/postgres?user=tocsin"

    async def start(self) -> None:
        """Start the server. The first start makes its files."""
        if self._as_root:
            _OF_ROOT.mkdir(parents=True, exist_ok=True)
            _OF_ROOT.chmod(0o711)  # the server's user must pass it, whatever root's umask is
        for folder in (self._home, self._sockets):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._as_root:
                shutil.chown(folder, _USER)
        if not (self._home / "data" / "PG_VERSION").exists():
            await self._run("initdb", "-D", self._data, "-U", "tocsin", "-A", "trust", "-E", "UTF8")
        if (self._home / "data" / "postmaster.pid").exists():  # of a network that was killed
            with contextlib.suppress(TocsinError):
                await self._control("stop")
        await self._control("start")

    async def stop(self) -> None:
        if (self._home / "data" / "postmaster.pid").exists():
            await self._control("stop")
        shutil.rmtree(self._sockets, ignore_errors=True)

    async def restart(self) -> None:
        await self._control("restart")

    def delete(self) -> None:
        """Delete everything that the server stored."""
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def _data(self) -> str:
        return str(self._home / "data")

    async def _control(self, action: str) -> None:
        listen = "127.0.0.1" if self._relayed else "''"
        options = (
            f"-c listen_addresses={listen} -c port={self.port} -c unix_socket_directories={self._sockets} "
            f"-c max_connections={_CONNECTIONS}"
        )
        started = ("-l", str(self._home / "log"), "-o", options) if action != "stop" else ()
        await self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", *started, action)

    async def _run(self, program: str, *arguments: str) -> None:
        prefix: list[str] = []
        if self._as_root:
            user = pwd.getpwnam(_USER)
            prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        with tempfile.TemporaryFile() as output:  # not a pipe: the server that pg_ctl starts would keep it open
            process = await asyncio.create_subprocess_exec(
                *prefix,
                str(self._programs / program),
                *arguments,
                cwd=self._home,
                env={**os.environ, "HOME": str(self._home), "LC_ALL": "C"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=output,
            )
            if await process.wait() != 0:
                output.seek(0)
                reason = output.read().decode(errors="replace").strip() or f"{self._home / 'log'} may have the reason"
                raise TocsinError(Code.INTERNAL, f"{program} failed: {reason}")


def _programs() -> Path:
    installed = sorted(_INSTALLED.glob("*/bin/initdb"))
    initdb = str(installed[-1]) if installed else shutil.which("initdb")
    if initdb is None:
        raise TocsinError(Code.NOT_FOUND, "PostgreSQL is not installed (Debian, Ubuntu: apt-get install postgresql)")
    return Path(initdb).resolve().parent
