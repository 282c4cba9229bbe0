"""What every route of the coordinator has at hand, and who is calling."""

from __future__ import annotations

import re
import secrets
from typing import cast

from starlette.requests import HTTPConnection

from tocsin.coordinator.core import Coordinator
from tocsin.model.ids import BrokerId, SubscriberId
from tocsin.runtime.coordinator.metrics import CoordinatorMetrics
from tocsin.runtime.coordinator.process import CoordinatorProcess
from tocsin.runtime.coordinator.settings import CoordinatorSettings
from tocsin.runtime.coordinator.watch import CoordinatorWatch
from tocsin.runtime.http.callers import Caller, is_broker_id
from tocsin.runtime.http.credentials import Signer
from tocsin.wire.errors import Code, TocsinError

_USER = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Api:
    def __init__(
        self,
        process: CoordinatorProcess,
        signer: Signer,
        settings: CoordinatorSettings,
        metrics: CoordinatorMetrics,
        watch: CoordinatorWatch,
    ) -> None:
        self.process = process
        self.watch = watch
        self.signer = signer
        self.verifier = signer.verifier()
        self.settings = settings
        self.metrics = metrics

    @property
    def core(self) -> Coordinator:
        if self.process.core is None or self.process.stopping:
            what = "stopping" if self.process.stopping else "still starting"
            raise TocsinError(Code.NOT_READY, f"the coordinator is {what}", retry_after_s=2)
        return self.process.core

    def sign(self, subject: str, scopes: list[str], lifetime_s: float | None) -> tuple[str, float | None]:
        """A token and when it expires."""
        now_s = self.process.now_s()
        token = self.signer.sign(subject, scopes, now_s=now_s, identity=secrets.token_hex(8), lifetime_s=lifetime_s)
        return token, None if lifetime_s is None else float(int(now_s + lifetime_s))


def api_of(connection: HTTPConnection) -> Api:
    return cast("Api", connection.app.state.api)


def caller_of(connection: HTTPConnection) -> Caller | None:
    """Who the door let in; None where it lets in strangers."""
    return cast("Caller | None", connection.scope.get("tocsin.caller"))


def require_admin(connection: HTTPConnection) -> Api:
    caller = caller_of(connection)
    if caller is None or not caller.is_admin:
        raise forbidden(caller, "admin")
    return api_of(connection)


def require_read(connection: HTTPConnection) -> Api:
    caller = caller_of(connection)
    if caller is None or not caller.may_read:
        raise forbidden(caller, "read")
    return api_of(connection)


def require_user(connection: HTTPConnection, user: str) -> tuple[Api, SubscriberId]:
    """The user itself, or an administrator."""
    caller = caller_of(connection)
    if caller is None or not caller.may_act_for(user):
        raise forbidden(caller, f"subscribe, made out to {user[:100]!r},")
    return api_of(connection), SubscriberId(user)


def require_broker(connection: HTTPConnection, broker: str) -> tuple[Api, BrokerId]:
    caller = caller_of(connection)
    if not is_broker_id(broker):
        raise TocsinError(Code.BAD_REQUEST, "a broker id has 1 to 128 letters, digits, dots, dashes and underscores")
    if caller is None or not (caller.may_be_any or f"broker:{broker}" in caller.scopes):
        raise forbidden(caller, f"broker:{broker}")
    return api_of(connection), BrokerId(broker)


def user_id(text: str) -> SubscriberId:
    if _USER.fullmatch(text) is None:
        raise TocsinError(Code.BAD_REQUEST, "a user's name has 1 to 100 letters, digits, dots, dashes and underscores")
    return SubscriberId(text)


def forbidden(caller: Caller | None, scope: str) -> TocsinError:
    if caller is None:
        return TocsinError(Code.UNAUTHENTICATED, "send a token: Authorization: Bearer …")
    has = " ".join(sorted(caller.scopes))
    return TocsinError(Code.FORBIDDEN, f"this needs a token with the scope {scope}; {caller.name} has: {has}")
