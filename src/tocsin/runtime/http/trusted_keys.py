"""Public keys that a process trusts: a JWK set from a file or from the coordinator's `/v1/keys`, kept in memory.

Processes may start in any order: while a process has no keys it accepts no token, and keeps fetching in the background.
A token that names an unknown key triggers another fetch, at most one every few seconds, so that strangers cannot cause
more. Keys once fetched stay valid while their source is unreachable.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Collection
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import jwt
import msgspec

from tocsin.model.backoff import retry_delay_s
from tocsin.runtime.http.credentials import Claims, Verifier
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError

REFRESH_S = 5.0
"""Shortest pause in seconds between two fetches that unknown keys trigger."""
_LONGEST_BYTES = 64 << 10
_ANSWER_S = 10.0
_BAD_DOCUMENT = (jwt.PyJWTError, ValueError, LookupError, TypeError, AttributeError)
"""Errors of a document that is no JWK set."""


class TrustedKeys:
    """Call `start` and `stop` on the event loop. A server calls `claims` for each connection."""

    def __init__(
        self,
        source: str,
        *,
        insecure: bool = False,
        ca: str | None = None,
        kept: Path | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source` is a path or an http(s) URL. `ca` is a PEM file to check the server's certificate with.

        Keys fetched from a URL are written to the file `kept`. The next start uses them until the URL answers again.
        """
        self._url = source if urlsplit(source).scheme in ("http", "https") else None
        self._path = None if self._url else Path(source)
        encrypted = insecure or not source.startswith("http:") or is_loopback(urlsplit(source).hostname or "")
        if self._url and not encrypted:
            raise TocsinError(
                Code.BAD_REQUEST, f"keys: an attacker could replace the keys from {source}; use https, or set insecure"
            )
        self._ca = ca
        self._kept = kept if self._url else None
        self._monotonic_s = monotonic_s
        self._verifier = Verifier({})
        self._fetched_s = -REFRESH_S
        self._fetching = asyncio.Lock()
        self._retrying: asyncio.Task[None] | None = None
        self._log = logger()
        self.ready = False
        """True once this process has keys."""

    async def start(self) -> None:
        """Fetch once. Without success use the kept keys; without those keep fetching in the background."""
        await self._fetch()
        if not self.ready and self._kept is not None:
            await asyncio.to_thread(self._read_kept, self._kept)
        if not self.ready:
            self._retrying = asyncio.create_task(self._fetch_until_ready())

    async def stop(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)

    async def claims(self, token: str, now_s: float, *, audience: str | Collection[str] | None = None) -> Claims | None:
        """Like `Verifier.claims`, but fetches the keys first if the token names an unknown key."""
        if not self._verifier.knows_key_of(token) and token.count(".") == 2:
            await self._fetch()
        return self._verifier.claims(token, now_s, audience=audience)

    def known_claims(self, token: str, now_s: float, *, audience: str | Collection[str] | None = None) -> Claims | None:
        """Like `claims`, but uses only the present keys."""
        return self._verifier.claims(token, now_s, audience=audience)

    async def _fetch_until_ready(self) -> None:
        failures = 1
        while not self.ready:
            await asyncio.sleep(retry_delay_s(failures))
            failures += 1
            await self._fetch(at_once=True)

    async def _fetch(self, *, at_once: bool = False) -> None:
        async with self._fetching:
            if not at_once and self._monotonic_s() - self._fetched_s < REFRESH_S:
                return
            self._fetched_s = self._monotonic_s()
            try:
                document = await self._read()
                self._verifier = Verifier.from_jwks(msgspec.json.decode(document, type=dict))
                self.ready = True
                if self._kept is not None:
                    await asyncio.to_thread(_keep, self._kept, document)
            except (OSError, httpx.HTTPError, *_BAD_DOCUMENT) as error:
                self._log.warning("no keys", source=str(self._url or self._path), reason=str(error) or repr(error))

    def _read_kept(self, kept: Path) -> None:
        try:
            self._verifier = Verifier.from_jwks(msgspec.json.decode(kept.read_bytes(), type=dict))
        except (OSError, *_BAD_DOCUMENT):
            return
        self.ready = True
        self._log.info("using the keys fetched last", file=str(kept))

    async def _read(self) -> bytes:
        if self._path is not None:
            return await asyncio.to_thread(self._path.read_bytes)
        assert self._url is not None
        verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=self._ca) if self._ca else True
        async with (
            httpx.AsyncClient(timeout=_ANSWER_S, verify=verify) as client,
            client.stream("GET", self._url) as response,
        ):
            response.raise_for_status()
            document = b""
            async for chunk in response.aiter_bytes():
                document += chunk
                if len(document) > _LONGEST_BYTES:
                    raise ValueError(f"more than {_LONGEST_BYTES} bytes of keys")
            return document


def _keep(path: Path, document: bytes) -> None:
    """Write the file completely or not at all. A failed write is logged and ignored: the keys are in memory."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(document)
        part.replace(path)
    except OSError as error:
        logger().warning("the keys cannot be stored", file=str(path), reason=str(error))
