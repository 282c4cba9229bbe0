"""One request to the coordinator, for commands that need no more. It imports nothing heavy before the request."""

from __future__ import annotations

from typing import Any

from tocsin.cli.console import failing_on_errors


def ask_coordinator(url: str, token: str | None, as_json: bool, method: str, path: str, **request: Any) -> Any:
    """The decoded answer; an error ends the command with its message."""
    from tocsin.cli.connection import ask, connect_coordinator

    with failing_on_errors(as_json), connect_coordinator(url, token) as client:
        return ask(client, method, path, **request)
