"""The audit log: which user did what to which object through which endpoint, and with which outcome, as JSON lines.

A thread of its own writes the file, so a slow disk never delays a request. Lines wait in a bounded queue; beyond it
they are counted and a line reports the number. The file is replaced when it is full (`audit_bytes`), and the last
`audit_files` are kept. It holds no tokens, secrets, query strings or records.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import msgspec
from starlette.types import Scope

from tocsin.runtime.http.callers import Caller
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.open_requests import CALLER
from tocsin.runtime.http.settings import ListenerSettings, invalid

OBJECT = "tocsin.object"
"""Key in the ASGI scope: the object of a request whose path does not name it, such as a channel in the body."""
CLAIMS = "tocsin.claims"
"""Key of a subscriber's token in the ASGI scope of a broker."""
_WAITING = 100_000
_LONGEST_TEXT = 200
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_OUTCOMES = {401: "unauthenticated", 403: "forbidden"}
_encode = msgspec.json.Encoder().encode


class AuditLog:
    """`record` may be called from any thread and never blocks. `close` writes the waiting lines."""

    def __init__(self, path: Path, part: str, *, limit_bytes: int, files: int) -> None:
        self._path = path
        self._part = part
        self._limit_bytes = limit_bytes
        self._files = files
        self._lines: deque[bytes] = deque()
        self._lost = 0
        self._wake = threading.Event()
        self._closing = False
        self._file = self._open()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def record(self, user: str | None, action: str, object_: str, endpoint: str, outcome: str, **more: Any) -> None:
        if len(self._lines) >= _WAITING:
            self._lost += 1
            return
        fields = {"user": user, "action": action, "object": object_, "endpoint": endpoint, "outcome": outcome} | more
        shown = {name: text[:_LONGEST_TEXT] if isinstance(text, str) else text for name, text in fields.items()}
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._lines.append(_encode({"at": at, "part": self._part, **shown}) + b"\n")
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            self._write_waiting()
        self._write_waiting()  # lines that came during the last write
        self._file.close()

    def _write_waiting(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        lost, self._lost = self._lost, 0
        if lost:
            lines.append(_encode({"part": self._part, "action": "lines lost", "lines": lost}) + b"\n")
        try:
            for line in lines:
                if self._file.tell() + len(line) > self._limit_bytes and self._file.tell():
                    self._rotate()
                self._file.write(line)
            self._file.flush()
        except OSError as error:
            logger().error("the audit log cannot be written", file=str(self._path), reason=str(error), lines=len(lines))

    def _rotate(self) -> None:
        """Rename the file to `….1`, the former `….1` to `….2` and so on; the oldest is replaced."""
        self._file.close()
        for number in range(self._files - 1, 0, -1):
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(self._path.with_name(f"{self._path.name}.{number}"))
        if self._files == 1:
            self._path.unlink(missing_ok=True)
        self._file = self._open()

    def _open(self) -> IO[bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        file = os.fdopen(descriptor, "ab")
        file.seek(0, os.SEEK_END)
        return file


def open_audit_log(settings: ListenerSettings, part: str) -> AuditLog | None:
    """The log that the settings name; None if they name none. Raises `TocsinError` if it cannot be written."""
    if settings.audit is None:
        return None
    try:
        return AuditLog(Path(settings.audit), part, limit_bytes=settings.audit_bytes, files=settings.audit_files)
    except OSError as error:
        raise invalid(f"audit: cannot write {settings.audit}: {error.strerror}") from None


def record_request(log: AuditLog | None, scope: Scope, status: int, quiet: frozenset[str] = frozenset()) -> None:
    """Record a request under /v1 that changes something, opens a connection or was refused for lack of a right.

    Successful reads are left out, and so are successful requests to the `quiet` endpoints: the traffic of brokers.
    """
    path: str = scope["path"]
    if log is None or not path.startswith("/v1/"):
        return
    method = scope.get("method", "WEBSOCKET")
    route = scope.get("route")
    template = getattr(route, "path", path)
    is_refused = status in _OUTCOMES
    if not is_refused and (method in _READS or template in quiet):
        return
    outcome = _OUTCOMES.get(status) or ("ok" if status < 400 else "refused" if status < 500 else "failed")
    user, token = _caller(scope)
    client = scope.get("client")
    log.record(
        user,
        getattr(route, "name", method.lower()),
        str(scope.get(OBJECT) or path),
        f"{method} {template}",
        outcome,
        status=status,
        token=token,
        address=None if client is None else client[0],
    )


def record_end(log: AuditLog | None, caller: Caller) -> None:
    """Record that a stream or a link ends because its token is revoked, or the key of the token is gone."""
    if log is not None:
        token = caller.id if caller.claims is None else caller.claims.identity
        log.record(caller.name, "end", "request", "request", "revoked", token=token)


def _caller(scope: Scope) -> tuple[str | None, str | None]:
    """(user, id of the token) of a request; None for a request without a valid token."""
    caller, claims = scope.get(CALLER), scope.get(CLAIMS)
    if caller is not None:
        return caller.name, caller.id if caller.claims is None else caller.claims.identity
    return (None, None) if claims is None else (claims.subject, claims.identity)
