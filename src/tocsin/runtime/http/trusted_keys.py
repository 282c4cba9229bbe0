"""The public keys a process trusts: a JWK set from a file or from the coordinator's `/v1/keys`, kept in memory.

Nobody has to start in order: a process whose coordinator is not there yet goes on asking in the background and trusts
nobody meanwhile. A token that names a key we do not have makes us look again, but strangers cannot make us look more
often than every few seconds. Keys that were once fetched stay good while their source is away.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
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
"""The shortest pause between two looks that unknown keys ask for."""
_LONGEST_BYTES = 64 << 10
_ANSWER_S = 10.0


class TrustedKeys:
    """`start` it on a loop, `stop` it there. `claims` is what a server asks for each connection."""

    def __init__(
        self,
        source: str,
        *,
        insecure: bool = False,
        ca: str | None = None,
        kept: Path | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source` is a path or an http(s) URL; `ca` a PEM file to check the server's certificate with.

        What an address answered is written to `kept` and used at the next start until the address answers again.
        """
        self._url = source if urlsplit(source).scheme in ("http", "https") else None
        self._path = None if self._url else Path(source)
        if (
            self._url
            and source.startswith("http:")
            and not insecure
            and not is_loopback(urlsplit(source).hostname or "")
        ):
            raise TocsinError(
                Code.BAD_REQUEST,
                f"keys: whoever sits between could replace what comes from {source}; use https, or say insecure",
            )
        self._ca = ca
        self._kept = kept if self._url else None
        self._monotonic_s = monotonic_s
        self._verifier = Verifier({})
        self._looked_s = -REFRESH_S
        self._looking = asyncio.Lock()
        self._trying: asyncio.Task[None] | None = None
        self._log = logger()
        self.ready = False
        """Whether keys have been had once."""

    async def start(self) -> None:
        """Look once; when there is nothing yet, go on looking in the background."""
        await self._look()
        if not self.ready and self._kept is not None:
            await asyncio.to_thread(self._recall, self._kept)
        if not self.ready:
            self._trying = asyncio.create_task(self._until_ready())

    async def stop(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)

    async def claims(self, token: str, now_s: float, *, audience: str | None = None) -> Claims | None:
        """As `Verifier.claims`; looks for new keys first if the token names one that is unknown here."""
        if not self._verifier.knows_key_of(token) and token.count(".") == 2:
            await self._look()
        return self._verifier.claims(token, now_s, audience=audience)

    def known_claims(self, token: str, now_s: float, *, audience: str | None = None) -> Claims | None:
        """From the keys at hand, without looking for others."""
        return self._verifier.claims(token, now_s, audience=audience)

    async def _until_ready(self) -> None:
        failures = 1
        while not self.ready:
            await asyncio.sleep(retry_delay_s(failures))
            failures += 1
            await self._look(at_once=True)

    async def _look(self, *, at_once: bool = False) -> None:
        async with self._looking:
            if not at_once and self._monotonic_s() - self._looked_s < REFRESH_S:
                return
            self._looked_s = self._monotonic_s()
            try:
                found = await self._read()
                document = msgspec.json.decode(found, type=dict)
                self._verifier = Verifier.from_jwks(document)
                self.ready = True
                if self._kept is not None:
                    await asyncio.to_thread(_keep, self._kept, found)
            except (
                OSError,
                httpx.HTTPError,
                jwt.PyJWTError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
            ) as error:
                self._log.warning("no keys", source=str(self._url or self._path), reason=str(error) or repr(error))

    def _recall(self, kept: Path) -> None:
        try:
            self._verifier = Verifier.from_jwks(msgspec.json.decode(kept.read_bytes(), type=dict))
        except (OSError, jwt.PyJWTError, ValueError, LookupError, TypeError, AttributeError):
            return
        self.ready = True
        self._log.info("using the keys seen last", file=str(kept))

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
            found = b""
            async for piece in response.aiter_bytes():
                found += piece
                if len(found) > _LONGEST_BYTES:
                    raise ValueError(f"more than {_LONGEST_BYTES} bytes of keys")
            return found


def _keep(path: Path, document: bytes) -> None:
    """Whole or not at all; a disk that is full is no reason to trust nobody."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(document)
        part.replace(path)
    except OSError as error:
        logger().warning("the keys cannot be kept", file=str(path), reason=str(error))
