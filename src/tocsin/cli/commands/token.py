"""`tocsin token create|list|revoke`: manage the tokens of a data cluster, and revoke tokens that a coordinator signed.

`tocsin token rotate-keys` replaces the key with which the coordinator signs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tocsin.cli.console import (
    DEFAULT_COORDINATOR_URL,
    DEFAULT_URL,
    AsJson,
    Token,
    Url,
    fail,
    failing_on_errors,
    show,
    table,
)

Coordinator = Annotated[
    str, typer.Option("--coordinator", envvar="TOCSIN_COORDINATOR_URL", help="Address of the coordinator.")
]

State = Annotated[
    Path | None,
    typer.Option(help="Write to the catalog in this state folder, without asking the server.", exists=True),
]


def register(app: typer.Typer) -> None:
    tokens = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.")
    tokens.command("create")(create)
    tokens.command("list")(list_tokens)
    tokens.command("revoke")(revoke)
    tokens.command("rotate-keys")(rotate_keys)
    app.add_typer(tokens, name="token")


def create(
    scope: Annotated[
        list[str],
        typer.Option(
            help="admin, author, read, subscribe, subscribe:<channel>, publish:<dataset>, broker:<id or *>; may be "
            "repeated. The name of a channel or a dataset may end with *."
        ),
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
    identity: Annotated[
        str | None, typer.Argument(help="Id of the token, as `tocsin token list` shows it.", show_default=False)
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option(help="Revoke all signed tokens of this user; may be repeated.")
    ] = None,
    jti: Annotated[
        list[str] | None, typer.Option(help="Revoke the signed token with this id (jti); may be repeated.")
    ] = None,
    url: Url = DEFAULT_URL,
    coordinator: Coordinator = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token of the data cluster at once; with --user or --jti, tokens that the coordinator signed.

    Brokers and data cluster know of revoked signed tokens within 5 s, and end the sessions and streams.
    """
    if user or jti:
        body = {"users": user or [], "tokens": jti or []}
        reply = _ask_coordinator(as_json, coordinator, token, "/v1/revocations", body)
        show(as_json, reply, lambda: print(f"revoked {', '.join([*(user or []), *(jti or [])])}"))
        return
    if identity is None:
        fail(as_json, "expected the id of a token, --user or --jti", code="bad_request")
    reply = _ask(as_json, url, token, "DELETE", f"/v1/tokens/{identity}")
    show(as_json, reply, lambda: print(f"revoked {identity}"))


def rotate_keys(
    overlap_days: Annotated[
        float | None,
        typer.Option(
            help="Days for which tokens of the former key stay valid; 0 ends them at once. Default: user_days.", min=0
        ),
    ] = None,
    coordinator: Coordinator = DEFAULT_COORDINATOR_URL,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Let the coordinator sign with a new key. Make new tokens for processes and people before the overlap ends."""
    body = {} if overlap_days is None else {"overlap_days": overlap_days}
    reply = _ask_coordinator(as_json, coordinator, token, "/v1/keys/rotate", body)
    text = f"signing with key {reply['key']}; the former key is valid for {reply['overlap_days']:g} days"
    show(as_json, reply, lambda: print(text))


def _ask(as_json: bool, url: str, token: str | None, method: str, path: str, body: Any = None) -> dict[str, Any]:
    from tocsin.cli.connection import ask, connect

    with failing_on_errors(as_json), connect(url, token) as client:
        reply: dict[str, Any] = ask(client, method, path, **({} if body is None else {"json": body}))
    return reply


def _ask_coordinator(as_json: bool, url: str, token: str | None, path: str, body: Any) -> dict[str, Any]:
    from tocsin.cli.connection import ask, connect_coordinator

    with failing_on_errors(as_json), connect_coordinator(url, token) as client:
        reply: dict[str, Any] = ask(client, "POST", path, json=body)
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
