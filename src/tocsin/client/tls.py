"""The TLS context for the `verify` option of publishers and subscribers."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

Verify = bool | str | Path | ssl.SSLContext
"""True: trust the system's authorities. A path: trust those in that PEM file as well. False: do not verify, for
experiments only."""


def context_for(verify: Verify) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    return _system() if verify is True else _custom(verify)


@cache
def _system() -> ssl.SSLContext:
    """The system's context. It is shared, because loading all authorities takes longer than connecting."""
    return ssl.create_default_context()


def context_with(authority: str | None) -> ssl.SSLContext:
    """A context that trusts an authority as well, given as PEM text. Raises OSError or ValueError if it is none."""
    if authority is None:
        return _system()
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=authority)
    return context


def _custom(verify: bool | str | Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if isinstance(verify, bool):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cafile=str(verify))
    return context
