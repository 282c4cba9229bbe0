"""`tocsin token create|list|revoke`: manage the tokens of a data cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.cli.console import DEFAULT_URL, AsJson, Token, Url, fail, failing_on_errors, show, table

State = Annotated[
    Path | None,
    typer.Option(help="Write to the catalog in this state folder, without asking the server.", exists=True),
]


def register(app: typer.Typer) -> None:
    tokens = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.")
    tokens.command("create")(create)
    tokens.command("list")(list_tokens)
    tokens.command("revoke")(revoke)
    app.add_typer(tokens, name="token")


def create(
    scope: Annotated[
        list[str],
        typer.Option(help="admin, author, read, subscribe, publish:<dataset or *>, broker:<id or *>; may be repeated."),
    ],
    name: Annotated[str, typer.Option(help="Name of the token's owner.")],
    days: Annotated[float | None, typer.Option(help="Days until the token expires. Default: never.", min=0)] = None,
    state: State = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Create a token. It is printed once and not stored. With --state this works even if all tokens are lost."""
    if state is not None:
        reply = _create_in_catalog(state, name, scope, days, as_json)
    else:
        reply = _ask(as_json, url, token, "POST", "/v1/tokens", {"name": name, "scopes": scope, "days": days})
    show(as_json, reply, lambda: print(f"{reply['token']}\n(id {reply['id']}, scopes {' '.join(reply['scopes'])})"))


def list_tokens(url: Url = DEFAULT_URL, token: Token = None, as_json: AsJson = False) -> None:
    """List the tokens with their owners, scopes and expiry."""
    reply = _ask(as_json, url, token, "GET", "/v1/tokens")
    rows = [
        (entry["id"], entry["name"], " ".join(entry["scopes"]), _moment(entry["expires_s"]))
        for entry in reply["tokens"]
    ]
    show(as_json, reply, lambda: table(("ID", "NAME", "SCOPES", "EXPIRES"), rows))


def revoke(
    identity: Annotated[str, typer.Argument(help="Id of the token, as `tocsin token list` shows it.")],
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token at once."""
    reply = _ask(as_json, url, token, "DELETE", f"/v1/tokens/{identity}")
    show(as_json, reply, lambda: print(f"revoked {identity}"))


def _ask(as_json: bool, url: str, token: str | None, method: str, path: str, body: Any = None) -> dict[str, Any]:
    from tocsin.cli.connection import ask, connect

    with failing_on_errors(as_json), connect(url, token) as client:
        reply: dict[str, Any] = ask(client, method, path, **({} if body is None else {"json": body}))
    return reply


def _create_in_catalog(state: Path, name: str, scopes: list[str], days: float | None, as_json: bool) -> dict[str, Any]:
    import os
    import time

    from tocsin.cluster.catalog import Catalog
    from tocsin.cluster.server.tokens import TokenStore
    from tocsin.cluster.settings import ClusterSettings

    settings = ClusterSettings(state=str(state), catalog=os.environ.get("TOCSIN_CATALOG"))
    store = TokenStore(Catalog(settings.catalog_url()), time.time, time.monotonic)
    expires_s = None if days is None else time.time() + days * 86_400
    try:
        caller, token = store.create(name, scopes, expires_s)
    except ValueError as error:
        fail(as_json, str(error), code="bad_request")
    return {"id": caller.id, "name": name, "scopes": sorted(caller.scopes), "expires_s": expires_s, "token": token}


def _moment(seconds: float | None) -> str:
    from datetime import UTC, datetime

    return "never" if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
