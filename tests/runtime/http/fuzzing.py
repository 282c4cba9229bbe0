"""Requests to every operation of a server's OpenAPI document, valid and invalid ones, made by schemathesis."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

EXAMPLES = int(os.environ.get("TOCSIN_FUZZ_EXAMPLES", "5"))
"""Requests to each operation. The default gives the same requests in every run, a larger number others."""
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


def operations(url: str, headers: Mapping[str, str], without: Iterable[str] = ()) -> list[Any]:
    """Operations of the server's OpenAPI document, except for the paths `without`, whose answers never end."""
    document = httpx.get(f"{url}/v1/openapi.json", headers=dict(headers)).json()
    results = schemathesis.openapi.from_dict(document).get_all_operations()
    described = [cast("Any", result).ok() for result in results]
    return [operation for operation in described if operation.path not in set(without)]


def try_all(
    url: str, headers: Mapping[str, str], mode: GenerationMode, tested: list[Any], is_fine: Callable[[Any], bool]
) -> int:
    """Send requests to all operations and return how many were sent.

    The requests come from schemathesis' strategies; its pytest plugin does not run on this pytest.
    """
    sent = 0
    for operation in tested:
        try:
            cases = operation.as_strategy(generation_mode=mode)
        except Unsatisfiable:  # the operation has no invalid requests
            continue

        @settings(
            max_examples=EXAMPLES,
            derandomize=EXAMPLES == 5,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases)
        def try_it(case: Any) -> None:
            nonlocal sent
            sent += 1
            answer = case.call(base_url=url, headers=dict(headers), timeout=60)
            assert answer.status_code < 500 or is_fine(answer), (answer.status_code, answer.text)

        with suppress(Unsatisfiable):
            try_it()
    return sent


def told_to_wait(answer: Any) -> bool:
    """503 with `Retry-After` is a valid answer of a server that is not ready."""
    return answer.status_code == 503 and "Retry-After" in {name.title() for name in answer.headers}
