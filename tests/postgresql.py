"""A PostgreSQL server for tests, in a temporary folder and on a socket there."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

_USERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root: one of these users runs it then."""


def binaries() -> Path | None:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(installed[-1]) if installed else shutil.which("initdb")
    return None if initdb is None else Path(initdb).resolve().parent


def why_not() -> str | None:
    """The reason why PostgreSQL cannot be started on this machine; None if it can."""
    if binaries() is None:
        return "PostgreSQL is not installed (make system installs it)"
    if os.geteuid() == 0 and _as_user() is None:
        return "PostgreSQL does not run as root, and there is no other user to run it as"
    return None


def _as_user() -> tuple[str, list[str]] | None:
    """(user, command prefix that runs a command as that user); None if there is no such user."""
    setpriv = shutil.which("setpriv")
    for name in _USERS:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        if setpriv is not None:
            return name, [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return None


@contextmanager
def running() -> Iterator[str]:
    """Run a fresh server and yield its SQLAlchemy URL."""
    programs = binaries()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="tocsin-pg-"))
    prefix: list[str] = []
    if os.geteuid() == 0:
        user = _as_user()
        assert user is not None
        name, prefix = user
        shutil.chown(folder, name)
    environment = {**os.environ, "HOME": str(folder), "LC_ALL": "C"}

    def run(*command: str) -> None:
        subprocess.run(
            [*prefix, *command], check=True, env=environment, cwd=folder, stdout=subprocess.DEVNULL, timeout=60
        )

    data = str(folder / "data")
    options = f"-c listen_addresses='' -c fsync=off -c unix_socket_directories={folder} -c max_connections=20"
    try:
        run(str(programs / "initdb"), "-D", data, "-U", "tocsin", "-A", "trust", "--no-sync", "-E", "UTF8")
        run(str(programs / "pg_ctl"), "-D", data, "-l", str(folder / "log"), "-o", options, "-w", "start")
        try:
            yield f"postgresql+psycopg://tocsin@/postgres?host={folder}"
        finally:
            run(str(programs / "pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def running_or_skipped() -> Iterator[str]:
    """For a fixture: the URL of a fresh server. Skips the test if none can be started."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with running() as url:
        yield url


def make_empty(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
