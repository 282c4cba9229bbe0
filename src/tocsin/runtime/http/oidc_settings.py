"""Settings for the tokens of an external issuer (OpenID Connect); `external_tokens` verifies them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tocsin.runtime.http.callers import is_scope
from tocsin.runtime.http.settings import invalid


@dataclass(frozen=True, slots=True)
class OidcSettings:
    oidc_keys: Annotated[
        str | None,
        "URL (`jwks_uri`) or file of an external issuer's JWK set. Its tokens name users, as OpenID Connect.",
    ] = None
    oidc_issuer: Annotated[str | None, "The `iss` of that issuer's tokens. Needed with `oidc_keys`."] = None
    oidc_audience: Annotated[str | None, "The `aud` that its tokens must have. Needed with `oidc_keys`."] = None
    oidc_user_claim: Annotated[
        str, "The claim with the user's name: letters, digits, dots, dashes and underscores. Other names are refused."
    ] = "sub"
    oidc_scopes: Annotated[str, "The scopes of such a token, separated by blanks."] = "subscribe"
    oidc_ca: Annotated[str | None, "PEM file with the authority for `oidc_keys`, if the system lacks it."] = None

    def check_oidc(self) -> None:
        """Raise `TocsinError` if the settings do not fit together."""
        if self.oidc_keys is not None and (self.oidc_issuer is None or self.oidc_audience is None):
            raise invalid(
                "oidc_keys needs oidc_issuer and oidc_audience: without them any token of that issuer is valid"
            )
        wrong = [scope for scope in self.oidc_scopes.split() if not is_scope(scope)]
        if wrong or not self.oidc_scopes.split():
            raise invalid(f"oidc_scopes {self.oidc_scopes!r}: expected scopes such as subscribe or subscribe:Alerts*")
