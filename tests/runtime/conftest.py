"""Fixtures of the data cluster's server tests: brokers and the coordinator are tested against a real data cluster."""

from __future__ import annotations

from tests.cluster.server.conftest import server, start_server

__all__ = ["server", "start_server"]
