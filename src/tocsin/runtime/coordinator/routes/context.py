"""The objects that every route of the coordinator uses."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import HTTPConnection

from tocsin.coordinator.core import Coordinator
from tocsin.coords.coordinate import Coordinate
from tocsin.runtime.coordinator.key_ring import KeyRing
from tocsin.runtime.coordinator.metrics import CoordinatorMetrics
from tocsin.runtime.coordinator.process import CoordinatorProcess
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.coordinator.topic_changes import TopicChanges
from tocsin.runtime.coordinator.watch import CoordinatorWatch
from tocsin.runtime.http.audit import AuditLog, record_end
from tocsin.runtime.http.callers import Caller
from tocsin.runtime.http.credentials import Claims, Signer, Verifier
from tocsin.runtime.http.open_requests import OpenRequests
from tocsin.runtime.http.trusted_keys import TrustedKeys
from tocsin.wire.errors import Code, TocsinError

_ANSWER_S = 0.2


@dataclass(frozen=True)
class CoordinatorContext:
    process: CoordinatorProcess
    keys: KeyRing
    settings: CoordinatorSettings
    metrics: CoordinatorMetrics
    watch: CoordinatorWatch
    external: TrustedKeys | None = None
    """Keys of an external issuer; None accepts only this coordinator's tokens."""
    audit: AuditLog | None = None
    open_requests: OpenRequests = field(default_factory=OpenRequests)
    topic_changes: TopicChanges = field(default_factory=TopicChanges)
    _seen: list[object] = field(default_factory=lambda: [None, 0])
    """The core and the number of its revocations that `keys` has."""

    @property
    def verifier(self) -> Verifier:
        return self.keys.verifier

    @property
    def signer(self) -> Signer:
        return self.keys.signer

    async def claims(self, token: str) -> Claims | None:
        """The content of a token of this coordinator or of the external issuer; None if it is not valid here."""
        now_s = self.process.now_s()
        claims = self.verifier.claims(token, now_s)
        if claims is None and self.external is not None and not self.verifier.knows_key_of(token):
            claims = await self.external.claims(token, now_s)
        return None if claims is None or self.verifier.is_revoked(claims) else claims

    def revocations_changed(self, core: Coordinator | None) -> None:
        """Take over the core's revocations if there are new ones, and end the requests of revoked callers."""
        if core is None or self._seen == [core, core.registry.revocation_changes]:
            return
        self._seen[:] = [core, core.registry.revocation_changes]
        self.keys.set_revocations(core.registry.revocations)
        self.end_revoked_soon()

    def end_revoked_soon(self) -> None:
        """End the requests of revoked callers. A caller that revokes its own tokens gets its answer first."""
        asyncio.get_running_loop().call_later(_ANSWER_S, self.end_revoked)

    def end_revoked(self) -> None:
        self.open_requests.end(self._is_revoked)

    def _is_revoked(self, caller: Caller) -> bool:
        if caller.claims is None or not self.verifier.is_revoked(caller.claims):
            return False
        record_end(self.audit, caller)
        return True

    async def end_expired(self) -> None:
        """End streams and links whose token has expired. A task for the whole life of the server."""
        while True:
            await asyncio.sleep(1.0)
            self.open_requests.end_expired(self.process.now_s())

    @property
    def core(self) -> Coordinator:
        """The coordinator's core. Raises NOT_READY while the coordinator starts or stops."""
        if self.process.core is None or self.process.stopping:
            phase = "stopping" if self.process.stopping else "still starting"
            raise TocsinError(Code.NOT_READY, f"the coordinator is {phase}", retry_after_s=2)
        return self.process.core

    def sign(
        self, subject: str, scopes: Iterable[str], lifetime_s: float | None, **more: Any
    ) -> tuple[str, float | None]:
        """A token, and the time at which it expires; None for never. `more` are further claims of `Signer.sign`."""
        now_s = self.process.now_s()
        claims = {"identity": secrets.token_hex(8)} | more
        token = self.signer.sign(subject, scopes, now_s=now_s, lifetime_s=lifetime_s, **claims)
        return token, None if lifetime_s is None else float(int(now_s + lifetime_s))


def checked_coordinate(coordinate: Coordinate | None) -> Coordinate | None:
    """A caller's coordinate, if it can be one; raises otherwise."""
    if coordinate is not None and not coordinate.is_sane:
        raise TocsinError(Code.BAD_REQUEST, "coordinate: not possible in a network on Earth")
    return coordinate


def context_of(connection: HTTPConnection) -> CoordinatorContext:
    return cast("CoordinatorContext", connection.app.state.context)
