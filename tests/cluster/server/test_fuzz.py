"""Whatever is sent to the data cluster's API, by its own description and beyond, the answer is never a 5xx."""

from __future__ import annotations

import pytest
from schemathesis import GenerationMode

from tests.cluster.server.conftest import RunningServer
from tests.runtime.http.fuzzing import MODES, operations, try_all

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("mode", MODES, ids=["fitting", "not fitting"])
def test_no_request_makes_it_fail(server: RunningServer, mode: GenerationMode) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    found = operations(server.url, headers, ["/v1/brokers/{broker}/announcements", "/v1/datasets/{name}/tap"])
    assert len(found) >= 20, [operation.label for operation in found]
    assert try_all(server.url, headers, mode, found, lambda answer: False) >= 20
    assert server.admin.get("/readyz").status_code == 200
