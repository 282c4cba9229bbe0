"""Runs the list against a server: `python -m tests.end_to_end.mqtt_conformance 127.0.0.1 1883 [user password]`."""

from __future__ import annotations

import asyncio
import json
import sys

from tests.end_to_end.mqtt_conformance.all_cases import run_all


def main() -> None:
    host, port, *login = sys.argv[1:]
    user, password = login or ("user", "password")
    outcomes = asyncio.run(run_all(host, int(port), user, password))
    passed = sum(outcome == "ok" for outcome in outcomes.values())
    failed = {name: outcome for name, outcome in outcomes.items() if outcome != "ok"}
    sys.stdout.write(json.dumps({"cases": len(outcomes), "passed": passed, "failed": failed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
