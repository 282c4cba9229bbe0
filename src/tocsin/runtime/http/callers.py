"""Callers and their scopes: the operations that the holder of a bearer token may use.

Scopes: `admin` (everything), `author` (declare and drop datasets, channels and feeds), `read` (definitions,
subscriptions, rates, metrics), `publish:<dataset>` or `publish:*`, `broker:<id>` or `broker:*` (subscribe, receive
announcements and pull results as that broker, and store records of the users that it serves), `register` (register
users at the coordinator), and `subscribe` or `subscribe:<channel>` (subscribe, receive announcements and pull results
as a broker of one's own, whose id is made from the token's id; at a broker: the user's session). A name of a channel or
a dataset may end with `*`: `subscribe:Emergencies*`. `send:<topic>` and `receive:<topic>` name topics, with the
wildcards `+` and `#`: `send:swarm/3/#`. `site:<name>` is for the coordinator of a neighbouring site.
Tokens of the data cluster's catalog and tokens signed by the coordinator (`runtime.http.credentials`) have the same
scopes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tocsin.model.ids import BrokerId
from tocsin.model.permission import RECEIVE, RELAYED_TOPICS, SEND, may_subscribe, permits, topic_scopes
from tocsin.model.topic import pattern_problem

if TYPE_CHECKING:  # settings import this module, and commands must start without cryptography
    from tocsin.runtime.http.credentials import Claims

_NAMES = r"(?:\*|[A-Za-z][A-Za-z0-9_]*\*?)"
_SCOPE = re.compile(
    rf"admin|author|read|register|subscribe(?::{_NAMES})?|publish:{_NAMES}|(?:broker:\*|(?:broker|site):[A-Za-z0-9._-]{{1,128}})"
)
GUEST = "guest-"
"""The names that users without a token choose begin with it, and no other token names such a user."""
_TOPIC_ACTIONS = (SEND, RECEIVE)
VALID_SCOPES = (
    "admin, author, read, register, subscribe, subscribe:<channel>, publish:<dataset>, send:<topic>, receive:<topic>, "
    "broker:<id or *>, site:<name>"
)
"""For messages. The name of a channel or a dataset may end with `*`; that of a topic may have `+` and `#`."""
_BROKER = re.compile(r"[A-Za-z0-9._-]{1,128}")


def is_scope(text: str) -> bool:
    action, _, pattern = text.partition(":")
    if action in _TOPIC_ACTIONS:
        return pattern_problem(pattern) is None
    return _SCOPE.fullmatch(text) is not None


def is_broker_id(text: str) -> bool:
    return _BROKER.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a token."""

    id: str
    """The first digits of the token's digest: they name the token and do not help to guess it."""
    name: str
    scopes: frozenset[str]
    expires_s: float | None = None
    subject: str | None = None
    """The user named by a signed token; None for tokens of the data cluster's catalog."""
    claims: Claims | None = None
    """The content of a signed token; None for tokens of the data cluster's catalog."""

    @property
    def account(self) -> str:
        """What quotas count for: the user, whose tokens share one; the token, if it names no user."""
        return self.id if self.subject is None else f"user {self.subject}"

    @property
    def is_admin(self) -> bool:
        return "admin" in self.scopes

    @property
    def may_declare(self) -> bool:
        return self.is_admin or "author" in self.scopes

    @property
    def topic_scopes(self) -> frozenset[str]:
        """Scopes `send:` and `receive:`; administrators, and brokers that relay topics, have them for all topics."""
        return RELAYED_TOPICS if self.is_trusted_broker else topic_scopes(self.scopes)

    @property
    def may_read(self) -> bool:
        return self.is_admin or "read" in self.scopes

    @property
    def may_register(self) -> bool:
        return self.is_admin or "register" in self.scopes

    def may_act_for(self, user: str) -> bool:
        """Subscribers may act for themselves, administrators for every user."""
        return self.is_admin or (may_subscribe(self.scopes) and self.subject == user)

    @property
    def own_broker(self) -> BrokerId:
        """The broker id of a caller that names none: its only `broker:` scope, else an id made from its token."""
        named = [scope.removeprefix("broker:") for scope in self.scopes if scope.startswith("broker:")]
        return BrokerId(named[0] if len(named) == 1 and named[0] != "*" else f"direct-{self.id}")

    def may_publish(self, dataset: str) -> bool:
        return self.is_admin or permits(self.scopes, "publish", dataset)

    def may_subscribe_to(self, channel: str) -> bool:
        """Brokers check the channels of their subscribers themselves."""
        return self.is_trusted_broker or permits(self.scopes, "subscribe", channel)

    def may_be(self, broker: str) -> bool:
        if self.may_be_any or f"broker:{broker}" in self.scopes:
            return True
        return may_subscribe(self.scopes) and broker == f"direct-{self.id}"

    @property
    def may_be_any(self) -> bool:
        return self.is_admin or "broker:*" in self.scopes

    @property
    def is_trusted_broker(self) -> bool:
        """True for the network's brokers. False for a user's token."""
        return self.is_admin or self.is_broker

    @property
    def is_broker(self) -> bool:
        """True for a token of one of the network's brokers."""
        return any(scope.startswith("broker:") for scope in self.scopes)

    @property
    def uses_edges(self) -> bool:
        """False for brokers and neighbouring sites: they receive topics from homes, also where edges relay them."""
        return not self.is_broker and not any(scope.startswith("site:") for scope in self.scopes)

    @property
    def is_some_broker(self) -> bool:
        return self.is_trusted_broker or may_subscribe(self.scopes)


def caller_of_claims(claims: Claims) -> Caller:
    """The holder of a signed token. The prefix of its id keeps it apart from ids that are digests of tokens."""
    return Caller(f"user-{claims.subject}", claims.subject, claims.scopes, claims.expires_s, claims.subject, claims)
