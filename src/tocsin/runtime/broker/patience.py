"""The parts that all links of a broker need: jittered pauses, TLS, reasons for the log."""

from __future__ import annotations

import random
import ssl

from tocsin.model.backoff import retry_delay_s

LONGEST_S = 15.0
_dice = random.Random()


def jittered_s(failures: int) -> float:
    """Seconds to wait after this many failures, with jitter, so that brokers do not retry at the same moment."""
    return retry_delay_s(failures, longest_s=LONGEST_S, jitter=_dice.uniform(0.5, 1.0)) if failures else 0.1


def tls_context(address: str, ca: str | None) -> ssl.SSLContext | None:
    """The TLS context for an address; None if the address is not encrypted."""
    return ssl.create_default_context(cafile=ca) if address.startswith("https:") else None


def reason_of(error: Exception) -> str:
    return str(error) or type(error).__name__
