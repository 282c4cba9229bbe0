"""The verdict of a demo: which reports fail, and the sentences that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.demo.report import problems

COUNTS = {"subscriptions": 5, "expected": 9, "lost": 0, "unexpected": 0, "wrong_shelters": 0, "skipped": 1}
GOOD: dict[str, Any] = {
    **dict.fromkeys(("lost", "repeated", "out_of_order", "unexpected", "gaps"), 0),
    "delivered": 9,
    "recomputed": COUNTS,
    "recomputed_batch": COUNTS | {"channels": {"Fires": COUNTS}},
    "channels": [{"name": "Fires", "frontend": 400}, {"name": "Floods", "frontend": 1}],
    "requested_subscriptions": 7,
    "granted_subscriptions": 7,
    "errors": [],
}


def test_report_without_errors_has_no_problems() -> None:
    assert problems(GOOD) == []
    assert problems(GOOD | {"recomputed": None, "recomputed_batch": None}) == [], "a run without recomputation"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"granted_subscriptions": 5}, "2 of 7 subscribe requests were not granted: look for refusals"),
        ({"lost": 3}, "notifications were wrong (lost 3): this is a bug, please report it"),
        ({"repeated": 1, "gaps": 2}, "(repeated 1, gaps 2)"),
        ({"recomputed": COUNTS | {"unexpected": 4}}, "(recomputed.unexpected 4)"),
        (
            {"recomputed_batch": GOOD["recomputed_batch"] | {"wrong_shelters": 1}},
            "(recomputed_batch.wrong_shelters 1)",
        ),
        ({"recomputed_batch": COUNTS | {"channels": {}}}, "the last batch did not check Fires: no result was expected"),
        (
            {"recomputed_batch": COUNTS | {"channels": {"Fires": COUNTS | {"expected": 0}}}},
            "the last batch did not check Fires",
        ),
        ({"delivered": 0}, "no notification arrived"),
        ({"errors": ["Denied: expired", "x"]}, "people ended with errors: Denied: expired; look into"),
    ],
)
def test_problem_is_a_sentence_that_says_what_to_do(changed: dict[str, Any], sentence: str) -> None:
    (problem,) = problems(GOOD | changed)
    assert sentence in problem
