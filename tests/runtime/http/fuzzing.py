"""Every operation of a server's own OpenAPI document, tried with what fits it and with what does not (schemathesis)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


def operations(url: str, headers: Mapping[str, str], without: Iterable[str] = ()) -> list[Any]:
    """By the server's description; `without` are paths that answer for ever."""
    document = httpx.get(f"{url}/v1/openapi.json", headers=dict(headers)).json()
    found = [cast("Any", result).ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    return [operation for operation in found if operation.path not in set(without)]


def try_all(
    url: str, headers: Mapping[str, str], mode: GenerationMode, found: list[Any], is_fine: Callable[[Any], bool]
) -> int:
    """How many requests were sent. By schemathesis' own strategies; its pytest plugin does not run on this pytest."""
    sent = 0
    for operation in found:
        try:
            cases = operation.as_strategy(generation_mode=mode)
        except Unsatisfiable:  # nothing about it can be wrong
            continue

        @settings(
            max_examples=5, derandomize=True, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
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
    """503 with `Retry-After` is an answer too: there may be nothing to give at the moment."""
    return answer.status_code == 503 and "Retry-After" in {name.title() for name in answer.headers}
