"""`surge`: its claims hold on a run and fail on doctored rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tocsin.experiments import runner
from tocsin.experiments.surge import EXPERIMENT


def test_surge_claims_hold_on_a_run_and_fail_without_an_answer(tmp_path: Path) -> None:
    table = runner.run_here(EXPERIMENT, EXPERIMENT.settings(1))
    answer = runner.finish(EXPERIMENT, 1, table, tmp_path)
    assert {claim["id"]: claim["holds"] for claim in answer["claims"]} == {
        "answered-in-time": True,
        "ldm-lower-maximum": True,
        "sdm-lower-maximum": True,
        "affinity-lower-maximum": True,
    }
    assert (tmp_path / "surge.png").exists()
    rows = table.to_pandas()
    averages = rows[(rows.kind == "run") & (rows.planner == "averages")].set_index("scheme")
    surges = (rows.kind == "run") & (rows.planner == "surges")
    for column in ("maximum", "answer_s"):
        rows.loc[surges, column] = rows[surges].scheme.map(averages[column])
    doctored = runner.finish(EXPERIMENT, 1, pa.Table.from_pandas(rows), tmp_path)
    assert not any(claim["holds"] for claim in doctored["claims"])
