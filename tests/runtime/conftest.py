"""Fixtures shared with the data cluster's server tests: a broker and a coordinator are tested against a real one."""

from __future__ import annotations

from tests.cluster.server.conftest import server, start_server

__all__ = ["server", "start_server"]
