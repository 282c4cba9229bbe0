"""The objects that every route of the coordinator uses."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from starlette.requests import HTTPConnection

from tocsin.coordinator.core import Coordinator
from tocsin.runtime.coordinator.metrics import CoordinatorMetrics
from tocsin.runtime.coordinator.process import CoordinatorProcess
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.coordinator.watch import CoordinatorWatch
from tocsin.runtime.http.credentials import Signer, Verifier
from tocsin.wire.errors import Code, TocsinError


@dataclass(frozen=True)
class CoordinatorContext:
    process: CoordinatorProcess
    signer: Signer
    settings: CoordinatorSettings
    metrics: CoordinatorMetrics
    watch: CoordinatorWatch

    @cached_property
    def verifier(self) -> Verifier:
        return self.signer.verifier()

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
        now_s, identity = self.process.now_s(), secrets.token_hex(8)
        token = self.signer.sign(subject, scopes, now_s=now_s, identity=identity, lifetime_s=lifetime_s, **more)
        return token, None if lifetime_s is None else float(int(now_s + lifetime_s))


def context_of(connection: HTTPConnection) -> CoordinatorContext:
    return cast("CoordinatorContext", connection.app.state.context)
