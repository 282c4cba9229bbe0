"""How a client checks whom it talks to, from what an application says in `verify`."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

Verify = bool | str | Path | ssl.SSLContext
"""True: by the system's authorities. A path: by those in that PEM file too. False: not at all, for experiments only."""


def context_for(verify: Verify) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    return _system() if verify is True else _made(verify)


@cache
def _system() -> ssl.SSLContext:
    """Shared: reading all authorities takes longer than connecting."""
    return ssl.create_default_context()


def _made(verify: bool | str | Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if isinstance(verify, bool):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cafile=str(verify))
    return context
