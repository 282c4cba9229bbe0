"""The whole list: importing the modules of cases fills the table."""

from __future__ import annotations

from tests.end_to_end.mqtt_conformance import (
    connect_statements,
    forbidden_packets,
    message_statements,
    paho_cases,
    paho_cases_5,
    subscription_statements,
)
from tests.end_to_end.mqtt_conformance.cases import run_all

MODULES = (
    *(connect_statements, forbidden_packets, message_statements, paho_cases, paho_cases_5),
    subscription_statements,
)
__all__ = ["MODULES", "run_all"]
