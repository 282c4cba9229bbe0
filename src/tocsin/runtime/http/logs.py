"""Logs: one event per line, as JSON or, on a terminal, as text. Libraries that use `logging` produce the same lines.

No line contains a secret: text that looks like one of our tokens is replaced by *** in every value.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

_SECRETS = re.compile(
    r"tocsin_[A-Za-z0-9_-]{16,}|(?<=access_token=)[^&\s\"']+|(?<=Bearer )[^\s\"']+"
    r"|eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*|whsec_[A-Za-z0-9+/=_-]+"
)
_SECRET_KEYS = frozenset({"token", "authorization", "access_token", "password", "secret"})


def without_secrets(_logger: Any, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if key.lower() in _SECRET_KEYS:
            event[key] = "***"
        elif isinstance(value, str):
            event[key] = _SECRETS.sub("***", value)
    return event


def configure_logs(level: str = "info", form: str = "auto", stream: TextIO | None = None) -> None:
    """`form` is `json`, `console` or `auto`, which is console on a terminal."""
    stream = stream or sys.stderr
    pretty = form == "console" or (form == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = structlog.processors.JSONRenderer()
    if pretty:  # plain tracebacks, because pretty ones show local variables, which may hold data of a client
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, without_secrets, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    # Spark's bridge reports every call at debug level, and HTTP clients every request at info.
    for chatty in ("py4j", "httpx", "httpcore", "uvicorn.access", "websockets"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # The server itself counts and logs connections that are refused or lost.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def logger() -> structlog.stdlib.BoundLogger:
    return cast("structlog.stdlib.BoundLogger", structlog.get_logger("tocsin"))


def logs_debug() -> bool:
    """Whether events of level debug are written. Ask before an event that is made often: structlog makes it first."""
    return logging.getLogger("tocsin").isEnabledFor(logging.DEBUG)


def is_worth_logging(failures: int) -> bool:
    """True for the 1st, 2nd, 4th, 8th … failure in a row: an error that lasts must not fill the log."""
    return failures & (failures - 1) == 0
