"""The latest token of each user: it proves to coordinator and data cluster that this broker serves the user.

The broker's own token does not: with it alone, one stolen token would open the subscriptions of all users. Tokens are
in memory only.
"""

from __future__ import annotations

import msgspec

from tocsin.model.ids import SubscriberId
from tocsin.runtime.http.credentials import Claims
from tocsin.wire import link

MOST_USERS = 200_000
_NEVER_S = float("inf")


class UserTokens:
    def __init__(self) -> None:
        self._tokens: dict[SubscriberId, tuple[str, float]] = {}

    def add(self, token: str, claims: Claims) -> None:
        """Keep the token, unless the kept one of the same user lasts longer."""
        user, until_s = SubscriberId(claims.subject), _NEVER_S if claims.expires_s is None else claims.expires_s
        kept = self._tokens.pop(user, None)
        self._tokens[user] = kept if kept is not None and kept[1] > until_s else (token, until_s)
        if len(self._tokens) > MOST_USERS:
            del self._tokens[next(iter(self._tokens))]

    def of(self, user: SubscriberId, now_s: float | None = None) -> str | None:
        """The user's token; with `now_s`, only if it has not expired."""
        token, until_s = self._tokens.get(user, (None, 0.0))
        return None if now_s is not None and now_s > until_s else token

    def forget(self, user: SubscriberId) -> None:
        self._tokens.pop(user, None)

    def attach(self, message: link.FromBroker) -> link.FromBroker:
        """The message with the tokens of the users that it names."""
        match message:
            case link.SessionOpened() | link.StateRequest() | link.Changed():
                return msgspec.structs.replace(message, token=self.of(message.subscriber))
            case link.Register():
                named = {*message.online, *message.hosting}
                tokens = {user: token for user in named if (token := self.of(user)) is not None}
                return msgspec.structs.replace(message, tokens=tokens)
        return message
