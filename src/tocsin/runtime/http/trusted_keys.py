"""Public keys that a process trusts: a JWK set from a file or from the coordinator's `/v1/keys`, kept in memory.

The coordinator's set also holds its revocations. `POLL_S` is how often a server reads the set again.

Processes may start in any order: while a process has no keys it accepts no token, and keeps fetching in the background.
A token that names an unknown key triggers another fetch, at most one every few seconds, so that strangers cannot cause
more. Keys once fetched stay valid while their source is unreachable. A process that cannot reach the source does not
know whether an unknown key is valid: it answers `not_ready`, so that the client repeats the request.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import jwt
import msgspec

from tocsin.leaders.addresses import first_address, split_addresses
from tocsin.leaders.clients import leading_client
from tocsin.model.backoff import retry_delay_s
from tocsin.runtime.http.credentials import Claims, Verifier
from tocsin.runtime.http.external_tokens import ExternalVerifier
from tocsin.runtime.http.logs import logger
from tocsin.runtime.http.oidc_settings import OidcSettings
from tocsin.runtime.http.settings import is_loopback
from tocsin.wire.errors import Code, TocsinError

POLL_S = 2.0
"""A revocation is known to every process after this long, and the time of one request. At most 5 s are promised."""
SLOW_POLL_S = 300.0
"""The pause between two reads of an external issuer's keys: it publishes no revocations."""
REFRESH_S = 5.0
"""Shortest pause in seconds between two fetches that unknown keys trigger."""
_LONGEST_BYTES = 16 << 20
"""Largest set of keys, with about 200,000 revocations."""
_ANSWER_S = 10.0
_BAD_DOCUMENT = (jwt.PyJWTError, ValueError, LookupError, TypeError, AttributeError)
"""Errors of a document that is no JWK set."""


class TokenVerifier(Protocol):
    """`credentials.Verifier` or `external_tokens.ExternalVerifier`."""

    def knows_key_of(self, token: str) -> bool: ...

    def claims(self, token: str, now_s: float, *, audience: str | Collection[str] | None = None) -> Claims | None: ...

    def is_revoked(self, claims: Claims) -> bool: ...


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
        poll_s: float | None = None,
        verifier_of: Callable[[Mapping[str, Any]], TokenVerifier] = Verifier.from_jwks,
        external: Sequence[TrustedKeys] = (),
    ) -> None:
        """`source` is a path, or one or several http(s) URLs with commas between them. `ca` is a PEM file to check the
        server's certificate with.

        Keys fetched from a URL are written to the file `kept`. The next start uses them until the URL answers again.
        The source is read again every `poll_s` seconds; None reads it only when a token names an unknown key.
        `external` are the keys of other issuers; this source's revocations of users count for their tokens too.
        """
        self._url = source if urlsplit(source).scheme in ("http", "https") else None
        self._path = None if self._url else Path(source)
        plain = [parts.hostname or "" for parts in map(urlsplit, split_addresses(source)) if parts.scheme == "http"]
        encrypted = insecure or all(is_loopback(host) for host in plain)
        if self._url and not encrypted:
            raise TocsinError(
                Code.BAD_REQUEST, f"keys: an attacker could replace the keys from {source}; use https, or set insecure"
            )
        self._ca = ca
        self._client: httpx.AsyncClient | None = None
        """Made once, off the loop: reading the certificates of all authorities takes tens of milliseconds, and making
        the client some more. It keeps no connection open. A failure drops it, because the file `ca` may have been
        replaced."""
        self._kept = kept if self._url else None
        self._monotonic_s = monotonic_s
        self._verifier_of = verifier_of
        self._verifier: TokenVerifier = verifier_of({"keys": []})
        self._external = list(external)
        self._poll_s = poll_s
        self._polling: asyncio.Task[None] | None = None
        self._document = b""
        self._etag = ""
        self._failed = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when the source has other keys or revocations than before."""
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
        if self._poll_s is not None:
            self._polling = asyncio.create_task(self._poll(self._poll_s))
        for keys in self._external:
            await keys.start()

    async def stop(self) -> None:
        tasks = [task for task in (self._retrying, self._polling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for keys in self._external:
            await keys.stop()

    async def claims(self, token: str, now_s: float, *, audience: str | Collection[str] | None = None) -> Claims | None:
        """Like `Verifier.claims`, but fetches the keys first if the token names an unknown key."""
        for keys in self._external:
            if keys._verifier.knows_key_of(token):
                return self.known_claims(token, now_s, audience=audience)
        if not self._verifier.knows_key_of(token) and token.count(".") == 2:
            await self._fetch()
            for keys in self._external:
                await keys._fetch()
        return self.known_claims(token, now_s, audience=audience)

    def known_claims(self, token: str, now_s: float, *, audience: str | Collection[str] | None = None) -> Claims | None:
        """Like `claims`, but uses only the present keys."""
        claims = self._verifier.claims(token, now_s, audience=audience)
        for keys in self._external:
            claims = claims or keys._verifier.claims(token, now_s, audience=audience)
        return None if claims is None or self.is_revoked(claims) else claims

    def is_revoked(self, claims: Claims) -> bool:
        return self._verifier.is_revoked(claims)

    def can_judge(self, token: str) -> bool:
        """False if a token that `claims` does not accept may still be valid.

        Then the token names an unknown key, and the last read of a source failed or has not ended.
        """
        sources = (self, *self._external)
        if token.count(".") != 2 or any(keys._verifier.knows_key_of(token) for keys in sources):
            return True
        return all(keys.ready and not keys._failed for keys in sources)

    async def _poll(self, poll_s: float) -> None:
        while True:
            await asyncio.sleep(poll_s)
            async with self._fetching:
                await self._read_again()

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
            await self._read_again()

    async def _read_again(self) -> None:
        """Read the source, and use its keys if they have changed. A failure keeps the present ones."""
        try:
            document = await self._read()
            if document is not None and document != self._document:
                self._verifier = self._verifier_of(msgspec.json.decode(document, type=dict))
                self._document = document
                if self._kept is not None:
                    await asyncio.to_thread(_keep, self._kept, document)
                self.on_change()
            self.ready, self._failed = True, False
        except (OSError, httpx.HTTPError, *_BAD_DOCUMENT) as error:
            if not self._failed or not self.ready:
                self._log.warning("no keys", source=str(self._url or self._path), reason=str(error) or repr(error))
            self._failed, self._client = True, None

    def _read_kept(self, kept: Path) -> None:
        try:
            self._verifier = self._verifier_of(msgspec.json.decode(kept.read_bytes(), type=dict))
        except (OSError, *_BAD_DOCUMENT):
            return
        self.ready = True
        self._log.info("using the keys fetched last", file=str(kept))

    async def _read(self) -> bytes | None:
        """The document; None if it has not changed."""
        if self._path is not None:
            return await asyncio.to_thread(self._path.read_bytes)
        assert self._url is not None
        client = self._client
        if client is None:
            client = self._client = await asyncio.to_thread(_new_client, self._url, self._ca)
        headers = {"If-None-Match": self._etag} if self._etag else {}
        async with client.stream("GET", first_address(self._url), headers=headers) as response:
            if response.status_code == 304:
                return None
            response.raise_for_status()
            document = b""
            async for chunk in response.aiter_bytes():
                document += chunk
                if len(document) > _LONGEST_BYTES:
                    raise ValueError(f"more than {_LONGEST_BYTES} bytes of keys")
            self._etag = response.headers.get("etag", "")
            return document


def _new_client(addresses: str, ca: str | None) -> httpx.AsyncClient:
    tls = ssl.create_default_context(cafile=ca)
    limits = httpx.Limits(max_keepalive_connections=0)
    return leading_client(addresses, base=False, timeout=_ANSWER_S, verify=tls, limits=limits)


def _keep(path: Path, document: bytes) -> None:
    """Write the file completely or not at all. A failed write is logged and ignored: the keys are in memory."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(document)
        part.replace(path)
    except OSError as error:
        logger().warning("the keys cannot be stored", file=str(path), reason=str(error))


def external_keys(settings: OidcSettings, *, insecure: bool = False) -> list[TrustedKeys]:
    """The keys of the external issuer that the settings name; an empty list if they name none."""
    if settings.oidc_keys is None:
        return []
    verifier_of = partial(ExternalVerifier.from_jwks, settings)
    source = settings.oidc_keys
    return [TrustedKeys(source, insecure=insecure, ca=settings.oidc_ca, poll_s=SLOW_POLL_S, verifier_of=verifier_of)]
