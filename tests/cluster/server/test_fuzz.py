"""Generated requests, valid and invalid by the OpenAPI document, never get a 5xx answer."""

from __future__ import annotations

import pytest
from schemathesis import GenerationMode

from tests.cluster.server.conftest import RunningServer
from tests.runtime.http.fuzzing import MODES, operations, try_all

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("mode", MODES, ids=["fitting", "not fitting"])
def test_no_request_gets_a_server_error(server: RunningServer, mode: GenerationMode) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    tested = operations(server.url, headers, ["/v1/brokers/{broker}/announcements", "/v1/datasets/{name}/tap"])
    assert len(tested) >= 20, [operation.label for operation in tested]
    assert try_all(server.url, headers, mode, tested, lambda answer: False) >= 20
    assert server.admin.get("/readyz").status_code == 200
