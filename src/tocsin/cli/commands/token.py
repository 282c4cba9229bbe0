"""`tocsin token create|list|revoke`: who may do what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli.options import DEFAULT_URL, AsJson, Token, Url
from tocsin.cli.output import fail, table, tell

if TYPE_CHECKING:
    from tocsin.cluster.server.tokens import TokenStore

State = Annotated[
    Path | None,
    typer.Option(help="Write to the catalog in this state folder instead of asking a server.", exists=True),
]


def register(app: typer.Typer) -> None:
    tokens = typer.Typer(no_args_is_help=True, help="Tokens: who may do what.")
    tokens.command("create")(create)
    tokens.command("list")(list_tokens)
    tokens.command("revoke")(revoke)
    app.add_typer(tokens, name="token")


def create(
    scope: Annotated[
        list[str],
        typer.Option(help="admin, read, subscribe, publish:<dataset or *>, broker:<id or *>; may be repeated."),
    ],
    name: Annotated[str, typer.Option(help="Whose it is.")],
    days: Annotated[float | None, typer.Option(help="Until it expires; never if not given.", min=0)] = None,
    state: State = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Make a token. It is shown once and stored nowhere; with --state even when every token was lost."""
    if state is not None:
        said = _create_in(state, name, scope, days, as_json)
    else:
        said = _ask(as_json, url, token, "POST", "/v1/tokens", {"name": name, "scopes": scope, "days": days})
    tell(as_json, said, lambda: print(f"{said['token']}\n(id {said['id']}, scopes {' '.join(said['scopes'])})"))


def list_tokens(url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """Who has a token, and for what."""
    said = _ask(as_json, url, token, "GET", "/v1/tokens")
    rows = [(one["id"], one["name"], " ".join(one["scopes"]), _moment(one["expires_s"])) for one in said["tokens"]]
    tell(as_json, said, lambda: table(("ID", "NAME", "SCOPES", "EXPIRES"), rows))


def revoke(
    identity: Annotated[str, typer.Argument(help="A token's id, as `tocsin token list` shows it.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Make a token worthless, at once."""
    said = _ask(as_json, url, token, "DELETE", f"/v1/tokens/{identity}")
    tell(as_json, said, lambda: print(f"revoked {identity}"))


def _ask(as_json: bool, url: str, token: str | None, method: str, path: str, body: Any = None) -> dict[str, Any]:
    from tocsin.cli.connection import ask, connect
    from tocsin.wire.errors import TocsinError

    try:
        with connect(url, token) as client:
            said: dict[str, Any] = ask(client, method, path, **({} if body is None else {"json": body}))
            return said
    except TocsinError as error:
        fail(as_json, error.message, code=error.code)


def _create_in(state: Path, name: str, scopes: list[str], days: float | None, as_json: bool) -> dict[str, Any]:
    import time

    store = _store_in(state)
    try:
        expires_s = None if days is None else time.time() + days * 86_400
        caller, token = store.create(name, scopes, expires_s)
    except ValueError as error:
        fail(as_json, str(error), code="bad_request")
    return {"id": caller.id, "name": name, "scopes": sorted(caller.scopes), "expires_s": expires_s, "token": token}


def _store_in(state: Path) -> TokenStore:
    import os
    import time

    from tocsin.cluster.catalog import Catalog
    from tocsin.cluster.server.tokens import TokenStore
    from tocsin.cluster.settings import ClusterSettings

    settings = ClusterSettings(state=str(state), catalog=os.environ.get("TOCSIN_CATALOG"))
    return TokenStore(Catalog(settings.catalog_url()), time.time, time.monotonic)


def _moment(seconds: float | None) -> str:
    from datetime import UTC, datetime

    return "never" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
